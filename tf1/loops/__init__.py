"""Loops: parts of the graph that a run evaluates as often as their data say, with gradients."""
