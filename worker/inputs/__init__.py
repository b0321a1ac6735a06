"""Input queues, readers and batching.

Layer: worker.
"""
