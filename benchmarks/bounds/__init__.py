"""What the machine bounds: how fast bytes go from process to process, and how fast a compiled kernel is."""
