"""The training loop of `tf.contrib.slim`, and what restores Variables for it."""
