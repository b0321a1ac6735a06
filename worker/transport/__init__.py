"""Connections to PS tasks: gRPC, sockets, shared memory.

Layer: worker.
"""
