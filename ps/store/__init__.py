"""The arrays of one shard: Variables, slots, and the kernels that change them.

Layer: ps.
"""
