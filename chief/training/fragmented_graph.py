"""The graph of local steps in fragments: one training op, which takes a worker's own steps and pushes a fragment.

docs/design/fragments.md is the law.

Layer: chief.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from globalstep.chief.training.training_graph import Gradients, grouped, made_of
from globalstep.errors import InvalidArgumentError
from globalstep.graph.graph import GraphKeys, Node, add_to_collection, get_default_graph
from globalstep.graph.mutations import Mutation
from globalstep.ops.constant_ops import placeholder
from globalstep.ops.summary_ops import scalar
from globalstep.optimizers.optimizer import Optimizer
from globalstep.optimizers.torch_optimizers import StepSource
from globalstep.variables.training_util import create_global_step
from globalstep.variables.variables import Variable
from globalstep.worker.frameworks.fragment_rounds import FragmentPushes, FragmentRounds, FragmentSteps, OuterFragment
from globalstep.worker.frameworks.fragments import FragmentTurns, split_evenly
from globalstep.worker.frameworks.local_steps import InnerOptimizer, LocalSteps
from globalstep.worker.frameworks.training_model import TrainingModel
from globalstep.worker.running.graph_rounds import RoundPace

__all__ = ["FragmentedGraph", "WorkerPlace"]


@dataclass(frozen=True)
class WorkerPlace:
    """Which worker this is, of how many, and when the run ends.

    Attributes:
        rank: 0 is the chief.
        world_size: How many workers there are.
        last: The global step to stop at; None where the program ends by itself.
    """

    rank: int
    world_size: int
    last: int | None


@dataclass
class FragmentedGraph:
    """The default graph, once a model is in it; for local steps whose copies last from push to push.

    Args:
        model: The model.
        optimizer: The outer optimizer, or a dict from patterns of names to optimizers.
        known_step: Gives the step that this worker knows of.
        gradients: What is done to gradients: nothing.
        local: The local steps.
        place: The worker.

    Attributes:
        step: The global step.
        steps: Keeps the batches of the next run.
        train_op: Takes the steps, and pushes; its value is the mean of their losses.
        loss: The same.

    Raises:
        InvalidArgumentError: If something does not go together.
    """

    model: TrainingModel
    optimizer: Any
    known_step: Callable[[], int]
    gradients: Gradients
    local: LocalSteps
    place: WorkerPlace
    step: Variable = field(init=False)
    steps: FragmentSteps = field(init=False)
    train_op: Node = field(init=False)
    loss: Node = field(init=False)

    def __post_init__(self) -> None:
        self.step = create_global_step()
        trained = {name: variable for name, variable in self.model.variables.items() if variable.trainable}
        self._require_fit(len(trained))
        sizes = {name: _bytes_of(variable) for name, variable in trained.items()}
        groups = grouped(self.optimizer, list(trained))
        fragments = [
            self._fragment({name: trained[name] for name in names}, groups)
            for names in split_evenly(sizes, self.local.fragments)
        ]
        local, place = self.local, self.place
        self.steps = FragmentSteps(self.model, InnerOptimizer(local.inner), RoundPace(local.steps))
        assert place.last is not None
        turns = FragmentTurns(local.fragments, place.last, 1 if local.replicas else place.world_size)
        turns.own = None if local.replicas else place.rank
        pushes = FragmentPushes(fragments, self.step, local.replicas)
        rounds = FragmentRounds(self.steps, pushes, turns, local.overlap, local.alpha)
        self.loss = self.train_op = Node(
            "LocalSteps", (), dtype="float32", shape=(), stateful=True, attrs={"local_rounds": rounds}
        )
        # The optimizers' own train ops are parts of its pushes.
        get_default_graph().get_collection_ref(GraphKeys.TRAIN_OP).clear()
        add_to_collection(GraphKeys.TRAIN_OP, self.train_op)
        with get_default_graph().name_scope(None):
            scalar("loss", self.loss)

    def _require_fit(self, trained: int) -> None:
        if self.model.updates or self.gradients.ema_decay is not None:
            raise InvalidArgumentError(
                "LocalSteps with fragments or overlap has no ema_decay, and a model without running averages such as "
                "BatchNorm's. Leave it out, or use LayerNorm or GroupNorm."
            )
        if self.place.last is None:
            raise InvalidArgumentError(
                "LocalSteps with fragments or overlap: give steps. The last synchronization brings all fragments, so "
                "its number must be known."
            )
        if trained < self.local.fragments:
            raise InvalidArgumentError(
                f"LocalSteps: fragments is {self.local.fragments}, and the model has {trained} parameters to train: a "
                "fragment is made of whole ones. Give at most as many."
            )

    def _fragment(self, variables: Mapping[str, Variable], groups: Sequence[tuple[Any, list[str]]]) -> OuterFragment:
        """Make a fragment, with outer optimizers of its own."""
        differences = {
            name: placeholder(variable.dtype, variable.shape, name=f"{name}/difference")
            for name, variable in variables.items()
        }
        applied: list[Mutation] = []
        decays: dict[str, float] = {}
        for given, names in groups:
            some = [name for name in names if name in variables]
            if not some:
                continue
            outer, decay = made_of(given, StepSource(self.step, self.known_step))
            if outer is given and self.local.fragments > 1 and outer.scalars():
                raise InvalidArgumentError(
                    f"LocalSteps with fragments: {type(given).__name__} has state of its own besides its slots, of "
                    "which each fragment needs one. Give an optimizer of gs.optim."
                )
            decays |= dict.fromkeys(some, decay)
            outer._in_graph(self.step.graph).gate = Optimizer.GATE_OP
            mutation = outer.apply_gradients([(differences[name], variables[name]) for name in some])
            if not isinstance(mutation, Mutation) or mutation.increments:
                raise InvalidArgumentError(
                    f"LocalSteps with fragments: {type(given).__name__} does more than to apply gradients. Give the "
                    "optimizer that it wraps."
                )
            applied.append(mutation)
        return OuterFragment(variables, differences, applied, decays)


def _bytes_of(variable: Variable) -> int:
    itemsize: int = np.dtype(variable.dtype.as_numpy_dtype).itemsize
    return math.prod(int(size) for size in variable.shape) * itemsize
