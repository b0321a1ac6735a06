"""What the processes of a measurement run, other than the peers' own programs."""
