"""Input queues, readers and batching.

Layer: tf1.
"""
