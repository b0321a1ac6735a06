"""The members of a run: clients, their leases, the chief's lease, and when a task may end.

Layer: ps.
"""
