"""The sequencer's ledger: who pushed what, in which order, decided how.

Layer: ps.
"""
