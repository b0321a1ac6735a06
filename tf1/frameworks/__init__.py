"""Losses that PyTorch, JAX or numpy compute, as nodes of a graph."""
