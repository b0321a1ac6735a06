"""The worker role: sessions, the client of a cluster, gradient front ends, input queues.

Layer: worker. Imports nothing of ps, chief or deploy.
"""
