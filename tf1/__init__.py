"""TensorFlow 1's training library: graphs, ops, gradients, sessions and what is built of them.

Its names are reached as `globalstep.NAME`, for programs that say `import globalstep as tf`. It is a library on top of
the parameter servers' client.
"""
