"""Gradients: which nodes they go through, and their values.

Layer: shared.
"""
