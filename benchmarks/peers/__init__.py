"""The peers' own programs, one file a peer: its PS and its worker, in the form that is idiomatic and fast there.

Those of other systems import neither globalstep nor its dependencies, so that they run in an environment of
their own (`make bench-peers`).
"""
