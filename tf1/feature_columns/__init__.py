"""Columns of features, and the layers that take them, as `gs.feature_column` gives them."""
