"""Steps of several contributions: what a shard holds of them, when a step is made, and who waits for it.

Layer: ps.
"""
