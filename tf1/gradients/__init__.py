"""Gradients: which nodes they go through, and their values.

Layer: tf1.
"""
