"""Optimizers that wrap another one: synchronous steps and local steps of graphs.

Layer: tf1.
"""
