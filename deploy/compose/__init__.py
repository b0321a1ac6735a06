"""`globalstep compose`: a cluster as the services of docker compose.

Layer: deploy.
"""
