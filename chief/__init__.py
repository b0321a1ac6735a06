"""The chief role: a worker with more duties (initialize, restore, hooks, checkpoints, summaries).

Layer: chief. Imports nothing of deploy.
"""
