"""`globalstep status` and `globalstep where`: a running cluster, seen from outside."""
