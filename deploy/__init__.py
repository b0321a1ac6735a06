"""Starting a cluster: the command line, the launcher, servers of a ClusterSpec."""
