"""Gradients: the rules of ops, and the nodes that are made by them."""
