"""Optimizers of graphs, under TensorFlow's names: schedules, slots, moving averages, synchronous and local steps.

Layer: tf1.
"""
