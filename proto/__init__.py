"""The wire contract: globalstep.proto and the code generated from it (`make proto`).

Layer: proto.
"""
