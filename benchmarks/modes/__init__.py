"""What the modes of a run cost: how workers treat each other."""
