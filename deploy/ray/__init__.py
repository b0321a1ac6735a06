"""`globalstep ray`: a cluster as the actors of a Ray placement group."""

from globalstep.deploy.ray.job import launch

__all__ = ["launch"]
