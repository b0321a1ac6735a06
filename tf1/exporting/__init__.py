"""Graphs as files: what they compute, written so that another program can import or serve it."""
