"""The servers of a PS task: gRPC, sockets, shared memory, and the handler behind them.

Layer: ps.
"""
