"""Who is in the cluster, which Variable lies where, and which run is which."""
