"""Functions of nodes, under TensorFlow's names: the modules that `gs.*` and `gs.nn.*` are made of."""
