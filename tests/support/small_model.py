"""A model whose arithmetic is counting, and PS tasks in this process that can lose their state."""

import threading
import uuid
from dataclasses import dataclass

import numpy as np

from globalstep.ps.local import drop, named
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.ops.math_ops import multiply
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.tf1.optimizers.optimizers import GradientDescentOptimizer
from globalstep.tf1.variables.training_util import get_or_create_global_step
from globalstep.tf1.variables.variables import Variable


@dataclass
class Model:
    """Each run of `train` adds 1 to the step and `by` to both elements of w; the loss is -(w1 + w2)."""

    step: object
    w: object
    by: object
    loss: object
    train: object


def build():
    step = get_or_create_global_step()
    w = Variable(np.zeros(2, np.float32), name="w")
    by = placeholder(np.float32, [], name="by")
    loss = -reduce_sum(w)
    train = GradientDescentOptimizer(1.0).minimize(multiply(by, loss), global_step=step)
    return Model(step, w, by, loss, train)


def wait_for_saves():
    """Wait until no checkpoint is being written any more."""
    for thread in threading.enumerate():
        if thread.name == "globalstep-saver":
            thread.join()


class LocalCluster:
    """PS tasks in this process, shared by the sessions of a test."""

    def __init__(self, shards=2):
        self._name = f"test-{uuid.uuid4().hex}"
        self.ps = named(self._name, shards)
        self.target = f"local://{self._name}"

    def lose(self, shard):
        """Restart a PS task, which loses its state."""
        self.ps.controls[shard].handler.shard = Shard(SYSTEM_CLOCK)

    def view(self, shard=0):
        return self.ps.controls[shard].handler.shard.view()

    @property
    def sequencer(self):
        return self.view(self.view().sequencer)

    def close(self):
        drop(self._name)


class Mortal:
    """A task's program with a monitored `session`, which may be killed."""

    def die(self):
        """As a process that is killed: it says no goodbye, and gives no sign of life any more."""
        cluster = self.session._tf_sess().cluster
        cluster.heartbeat.stop()
        if cluster.journal is not None:
            cluster.journal.stop()
