"""A run's directory: its identity, its journal, its report."""
