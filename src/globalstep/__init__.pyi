# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.chief.client import Client as Client
from globalstep.chief.client import Pushed as Pushed
from globalstep.chief.client import connect as connect
from globalstep.chief.training.callbacks import Callback as Callback
from globalstep.chief.training.evaluation import Evaluate as Evaluate
from globalstep.chief.training.fit import fit as fit
from globalstep.chief.training.callbacks import CSVLogger as CSVLogger
from globalstep.chief.training.callbacks import MLflowLogger as MLflowLogger
from globalstep.chief.training.callbacks import WandbLogger as WandbLogger
from globalstep.chief.training.saved_model import load as load
from globalstep.chief.training.trainer import FitResult as FitResult
from globalstep.chief.training.trainer import Trainer as Trainer
from globalstep.cluster.run_policy import RunPolicy as RunPolicy
from globalstep.config import ConfigProto as ConfigProto
from globalstep.errors import GlobalStepError as GlobalStepError
from globalstep.errors import OpError as OpError
from globalstep.framework_names import jax as jax
from globalstep.framework_names import torch as torch
from globalstep.tf1.frameworks.py_loss import py_loss as py_loss
from globalstep.wire.wire_options import WireOptions as WireOptions
from globalstep.worker.frameworks.step_options import LocalSteps as LocalSteps
from globalstep.worker.frameworks.step_options import WorkUnits as WorkUnits
import globalstep.errors as errors
import globalstep.optim as optim
from globalstep.tf1.names import *

VERSION: str
__version__: str
