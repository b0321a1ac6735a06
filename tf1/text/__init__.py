"""Functions of strings, their fingerprints, and lookup tables."""
