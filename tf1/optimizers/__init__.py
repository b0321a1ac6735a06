"""Optimizers of graphs, under TensorFlow's names: schedules, slots, moving averages, synchronous steps."""
