# Made by scripts/generate_stubs.py from the table in the .py beside it; do not edit.

from globalstep.probability.continuous import Laplace as Laplace
from globalstep.probability.continuous import StudentT as StudentT
from globalstep.probability.continuous import Uniform as Uniform
from globalstep.probability.counts import DirichletMultinomial as DirichletMultinomial
from globalstep.probability.counts import Multinomial as Multinomial
from globalstep.probability.discrete import Bernoulli as Bernoulli
from globalstep.probability.discrete import Categorical as Categorical
from globalstep.probability.distribution import Distribution as Distribution
from globalstep.probability.distribution import FULLY_REPARAMETERIZED as FULLY_REPARAMETERIZED
from globalstep.probability.distribution import NOT_REPARAMETERIZED as NOT_REPARAMETERIZED
from globalstep.probability.distribution import ReparameterizationType as ReparameterizationType
from globalstep.probability.divergence import RegisterKL as RegisterKL
from globalstep.probability.divergence import kl_divergence as kl_divergence
from globalstep.probability.gamma import Beta as Beta
from globalstep.probability.gamma import Dirichlet as Dirichlet
from globalstep.probability.gamma import Exponential as Exponential
from globalstep.probability.gamma import Gamma as Gamma
from globalstep.probability.normal import Normal as Normal
