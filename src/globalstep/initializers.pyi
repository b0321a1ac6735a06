# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.ops.init_ops import constant_initializer as constant
from globalstep.tf1.ops.init_ops import glorot_normal_initializer as glorot_normal
from globalstep.tf1.ops.init_ops import glorot_uniform_initializer as glorot_uniform
from globalstep.tf1.ops.init_ops import he_normal as he_normal
from globalstep.tf1.ops.init_ops import he_uniform as he_uniform
from globalstep.tf1.ops.init_ops import identity_initializer as identity
from globalstep.tf1.ops.init_ops import lecun_normal as lecun_normal
from globalstep.tf1.ops.init_ops import lecun_uniform as lecun_uniform
from globalstep.tf1.ops.init_ops import ones_initializer as ones
from globalstep.tf1.ops.init_ops import orthogonal_initializer as orthogonal
from globalstep.tf1.ops.init_ops import random_normal_initializer as random_normal
from globalstep.tf1.ops.init_ops import random_uniform_initializer as random_uniform
from globalstep.tf1.ops.init_ops import truncated_normal_initializer as truncated_normal
from globalstep.tf1.ops.init_ops import uniform_unit_scaling_initializer as uniform_unit_scaling
from globalstep.tf1.ops.init_ops import variance_scaling_initializer as variance_scaling
from globalstep.tf1.ops.init_ops import zeros_initializer as zeros
from globalstep.tf1.variables.variable_collections import global_variables_initializer as global_variables
from globalstep.tf1.variables.variable_collections import local_variables_initializer as local_variables
from globalstep.tf1.variables.variable_collections import variables_initializer as variables
