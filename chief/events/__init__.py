"""Summaries and event files.

Layer: chief.
"""
