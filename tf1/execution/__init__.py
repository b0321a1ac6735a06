"""Running a graph: plans, their execution, and the pushes that come of it."""
