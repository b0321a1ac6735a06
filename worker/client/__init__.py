"""The client of a cluster: membership, leases, retries, recovery.

Layer: worker.
"""
