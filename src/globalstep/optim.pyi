# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.optimizers.torch_optimizers import Adadelta as Adadelta
from globalstep.optimizers.torch_optimizers import Adagrad as Adagrad
from globalstep.optimizers.torch_optimizers import Adam as Adam
from globalstep.optimizers.torch_optimizers import AdamW as AdamW
from globalstep.optimizers.torch_optimizers import DelayedNesterov as DelayedNesterov
from globalstep.optimizers.torch_optimizers import RMSprop as RMSprop
from globalstep.optimizers.torch_optimizers import RowWiseAdagrad as RowWiseAdagrad
from globalstep.optimizers.torch_optimizers import SGD as SGD
from globalstep.optimizers.torch_optimizers import SparseAdam as SparseAdam
from globalstep.optimizers.torch_schedules import CosineAnnealingLR as CosineAnnealingLR
from globalstep.optimizers.torch_schedules import ExponentialLR as ExponentialLR
from globalstep.optimizers.torch_schedules import LinearLR as LinearLR
from globalstep.optimizers.torch_schedules import MultiStepLR as MultiStepLR
from globalstep.optimizers.torch_schedules import OneCycleLR as OneCycleLR
from globalstep.optimizers.torch_schedules import SequentialLR as SequentialLR
from globalstep.optimizers.torch_schedules import StepLR as StepLR
