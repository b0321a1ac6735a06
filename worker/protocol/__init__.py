"""The client's side of the push protocol: how a push is split, packed, sent and answered.

Layer: worker.
"""
