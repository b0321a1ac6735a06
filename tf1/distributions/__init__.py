"""Probability distributions whose parameters are nodes."""
