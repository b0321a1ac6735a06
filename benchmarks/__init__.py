"""Benchmarks: each module a command (`python -m benchmarks.bench --help`); folders hold what they share."""
