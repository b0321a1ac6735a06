"""`globalstep launch`: a whole cluster of processes on this machine."""
