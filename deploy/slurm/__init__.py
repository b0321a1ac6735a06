"""`globalstep slurm`: a cluster as the tasks of a Slurm job."""
