"""The write-ahead log of a PS task: records, files, recovery.

Layer: ps.
"""
