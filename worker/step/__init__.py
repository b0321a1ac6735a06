"""A step of training without a graph: what computes loss and gradients, and what a worker does with them.

Layer: worker.
"""
