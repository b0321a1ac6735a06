"""Sessions with duties: how they begin, recover, and end, and which task is the chief."""
