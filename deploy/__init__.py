"""How a cluster comes to be: the command line, the launcher, servers of a ClusterSpec."""
