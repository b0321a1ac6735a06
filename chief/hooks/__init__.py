"""Hooks: what happens around each run of a session."""
