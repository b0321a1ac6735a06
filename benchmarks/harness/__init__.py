"""How a measurement is made: the peers, their processes and turns, the machine, what a step is."""
