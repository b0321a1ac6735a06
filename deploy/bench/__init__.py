"""`globalstep bench`: what a step's parts cost on this machine.

Layer: deploy.
"""
