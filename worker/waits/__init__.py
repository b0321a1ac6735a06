"""Waits of a worker for other workers, at the client: for a step that several make, and for those that are slower.

Layer: worker.
"""
