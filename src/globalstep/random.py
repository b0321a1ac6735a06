"""`gs.random`: random nodes, as TensorFlow 1.15 groups them.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.ops.random_ops": (
        "gamma=random_gamma multinomial normal=random_normal poisson=random_poisson set_random_seed "
        "shuffle=random_shuffle truncated_normal uniform=random_uniform"
    ),
    "globalstep.tf1.ops.sampling_ops": "log_uniform_candidate_sampler uniform_candidate_sampler",
}

__all__ = namespace(__name__, _NAMES)
