"""Hooks of a session of a graph: values, summaries, prefetched rows, profiles."""
