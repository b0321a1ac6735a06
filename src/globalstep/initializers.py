"""`gs.initializers`: initializers of Variables under their short names.

Layer: namespace.
"""

from globalstep.lazy import namespace

_NAMES = {
    "globalstep.tf1.ops.init_ops": (
        "constant=constant_initializer glorot_normal=glorot_normal_initializer "
        "glorot_uniform=glorot_uniform_initializer he_normal he_uniform identity=identity_initializer "
        "lecun_normal lecun_uniform ones=ones_initializer orthogonal=orthogonal_initializer "
        "random_normal=random_normal_initializer random_uniform=random_uniform_initializer "
        "truncated_normal=truncated_normal_initializer "
        "uniform_unit_scaling=uniform_unit_scaling_initializer "
        "variance_scaling=variance_scaling_initializer zeros=zeros_initializer"
    ),
    "globalstep.tf1.variables.variable_collections": (
        "global_variables=global_variables_initializer local_variables=local_variables_initializer "
        "variables=variables_initializer"
    ),
}

__all__ = namespace(__name__, _NAMES)
