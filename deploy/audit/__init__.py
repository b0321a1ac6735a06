"""`globalstep audit`: whether a run's step is the number of its accepted pushes."""
