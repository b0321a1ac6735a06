"""Queues that tasks share: what a PS task holds of them, and how it serves them.

Layer: ps.
"""
