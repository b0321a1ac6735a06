"""Layers, arg scopes and training ops of `tf.contrib.layers` and `tf.contrib.slim`, built on those of `gs.layers`."""
