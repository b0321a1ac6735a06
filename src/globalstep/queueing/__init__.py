"""Queues that tasks share, as both their ends know them.

Layer: shared.
"""
