"""Optimizers, learning-rate schedules, slots and moving averages: from a loss to what a PS task applies.

Layer: shared.
"""
