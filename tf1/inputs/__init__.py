"""Input queues, readers and batching."""
