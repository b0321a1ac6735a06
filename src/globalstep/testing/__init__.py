"""Faults that a test plans: nothing happens unless it is asked for.

Layer: shared.
"""
