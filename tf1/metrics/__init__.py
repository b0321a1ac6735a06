"""Metrics of a model over many batches, as `gs.metrics` and `gs.contrib.metrics` give them."""
