"""Losses of other frameworks: PyTorch, jax, plain numpy.

Layer: worker.
"""
