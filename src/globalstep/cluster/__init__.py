"""The tasks of a cluster, the placement of Variables, and the identity of a run."""
