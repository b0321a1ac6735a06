"""Graphs and models as files that other programs import or serve.

Layer: chief.
"""
