# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.ops.random_ops import categorical as categorical
from globalstep.tf1.ops.random_ops import multinomial as multinomial
from globalstep.tf1.ops.random_ops import random_gamma as gamma
from globalstep.tf1.ops.random_ops import random_normal as normal
from globalstep.tf1.ops.random_ops import random_poisson as poisson
from globalstep.tf1.ops.random_ops import random_shuffle as shuffle
from globalstep.tf1.ops.random_ops import random_uniform as uniform
from globalstep.tf1.ops.random_ops import set_random_seed as set_random_seed
from globalstep.tf1.ops.random_ops import truncated_normal as truncated_normal
from globalstep.tf1.ops.sampling_ops import log_uniform_candidate_sampler as log_uniform_candidate_sampler
from globalstep.tf1.ops.sampling_ops import uniform_candidate_sampler as uniform_candidate_sampler
