"""`globalstep status` and `globalstep runs`: a running cluster, seen from outside."""
