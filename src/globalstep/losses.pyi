# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.losses import Reduction as Reduction
from globalstep.tf1.losses import absolute_difference as absolute_difference
from globalstep.tf1.losses import add_loss as add_loss
from globalstep.tf1.losses import compute_weighted_loss as compute_weighted_loss
from globalstep.tf1.losses import cosine_distance as cosine_distance
from globalstep.tf1.losses import get_losses as get_losses
from globalstep.tf1.losses import get_regularization_loss as get_regularization_loss
from globalstep.tf1.losses import get_regularization_losses as get_regularization_losses
from globalstep.tf1.losses import get_total_loss as get_total_loss
from globalstep.tf1.losses import hinge_loss as hinge_loss
from globalstep.tf1.losses import huber_loss as huber_loss
from globalstep.tf1.losses import log_loss as log_loss
from globalstep.tf1.losses import mean_squared_error as mean_squared_error
from globalstep.tf1.losses import sigmoid_cross_entropy as sigmoid_cross_entropy
from globalstep.tf1.losses import softmax_cross_entropy as softmax_cross_entropy
from globalstep.tf1.losses import sparse_softmax_cross_entropy as sparse_softmax_cross_entropy
