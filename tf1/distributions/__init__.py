"""Probability distributions whose parameters are nodes.

Layer: tf1.
"""
