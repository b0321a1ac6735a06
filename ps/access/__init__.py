"""Access to a PS task: roles, tokens, paths, and what strangers are refused.

Layer: ps.
"""
