"""Variables as a program sees them: made, found by name, scoped, partitioned, assigned."""
