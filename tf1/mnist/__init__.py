"""Readers of the data sets that TensorFlow's tutorials and tf.contrib.learn have: files that are there are read."""
