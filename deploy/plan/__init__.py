"""`globalstep plan`: how many PS tasks a job needs, by simulation.

Layer: deploy.
"""
