"""Checkpoints: saving, keeping, finding, restoring and importing them."""
