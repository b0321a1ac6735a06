"""`globalstep replay`: what a run held at any step, from its logs.

Layer: deploy.
"""
