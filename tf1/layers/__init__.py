"""Layers that make their own Variables: classes, functions, and regularizers, as `gs.layers` gives them."""
