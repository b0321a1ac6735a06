"""Sessions of a graph, the classes that make and keep them, and what runs beside them."""
