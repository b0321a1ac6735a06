"""The parameter-server role: the store, the book of pushes, the servicer, the process.

Layer: ps. Imports nothing of worker, chief or deploy.
"""
