# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.distributions.continuous import Laplace as Laplace
from globalstep.tf1.distributions.continuous import StudentT as StudentT
from globalstep.tf1.distributions.continuous import Uniform as Uniform
from globalstep.tf1.distributions.counts import DirichletMultinomial as DirichletMultinomial
from globalstep.tf1.distributions.counts import Multinomial as Multinomial
from globalstep.tf1.distributions.discrete import Bernoulli as Bernoulli
from globalstep.tf1.distributions.discrete import Categorical as Categorical
from globalstep.tf1.distributions.distribution import Distribution as Distribution
from globalstep.tf1.distributions.distribution import FULLY_REPARAMETERIZED as FULLY_REPARAMETERIZED
from globalstep.tf1.distributions.distribution import NOT_REPARAMETERIZED as NOT_REPARAMETERIZED
from globalstep.tf1.distributions.distribution import ReparameterizationType as ReparameterizationType
from globalstep.tf1.distributions.divergence import RegisterKL as RegisterKL
from globalstep.tf1.distributions.divergence import kl_divergence as kl_divergence
from globalstep.tf1.distributions.gamma import Beta as Beta
from globalstep.tf1.distributions.gamma import Dirichlet as Dirichlet
from globalstep.tf1.distributions.gamma import Exponential as Exponential
from globalstep.tf1.distributions.gamma import Gamma as Gamma
from globalstep.tf1.distributions.normal import Normal as Normal
