"""The graph that a program builds: nodes, their names, shapes and devices."""
