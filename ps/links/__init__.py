"""Links between the sequencer and the other shards: votes for pushes one way, decisions the other.

Layer: ps.
"""
