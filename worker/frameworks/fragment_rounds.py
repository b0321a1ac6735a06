"""Local steps in fragments: a worker's copy of the model stays from push to push, and each push brings a part of it.

docs/design/fragments.md is the law.

Layer: worker. Threads: a FragmentRounds belongs to one thread; with overlap another sends a push meanwhile, and has
ended when `take` returns. Source: Streaming DiLoCo, arXiv 2501.18512.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.graph.graph import Node
from globalstep.graph.mutations import Mutation, increment
from globalstep.variables.variables import Variable
from globalstep.wire.declarations import OutcomeKind, Read
from globalstep.worker.frameworks.foreign_loss import Array
from globalstep.worker.frameworks.fragments import FragmentCopies, FragmentTurns
from globalstep.worker.frameworks.local_steps import InnerOptimizer, read_only
from globalstep.worker.frameworks.training_model import TrainingModel
from globalstep.worker.running.graph_rounds import RoundPace
from globalstep.worker.running.push_form import PushForm

if TYPE_CHECKING:
    from globalstep.worker.running.executor import Executor

__all__ = ["FragmentPushes", "FragmentRounds", "FragmentSteps", "OuterFragment", "Settled"]


@dataclass(frozen=True)
class OuterFragment:
    """A fragment, with what applies its differences.

    Attributes:
        variables: By name.
        differences: By name: the node that stands for the difference.
        applied: Apply the outer optimizers; no step is moved on.
        decays: By name: part of each value that is added to its difference.
    """

    variables: Mapping[str, Variable]
    differences: Mapping[str, Node]
    applied: Sequence[Mutation]
    decays: Mapping[str, float]


@dataclass(frozen=True)
class _Cut:
    """What a push is to bring: which fragment, or all; and the step that the differences are computed from."""

    turn: int | None
    differences: Sequence[Array]
    base: int


@dataclass(frozen=True)
class Settled:
    """What came of a push.

    Attributes:
        kind: Its outcome.
        values: By name: what was pushed, as it is on the PS now.
        step: The global step as of these.
    """

    kind: OutcomeKind
    values: Mapping[str, Array]
    step: int


class FragmentPushes:
    """The pushes of fragments, and of all of them at once. Thread-safe: never changed.

    Args:
        fragments: In order.
        step: The global step, which each push moves on by one.
        replicas: How many workers' pushes make a step; None for each to make one.

    Raises:
        InvalidArgumentError: If a hyper-parameter of an outer optimizer is known to a run alone.
    """

    def __init__(self, fragments: Sequence[OuterFragment], step: Variable, replicas: int | None) -> None:
        self.step = step
        self._together = replicas is not None
        counts = increment(step, name="synchronized")
        if replicas is not None:
            counts.attrs["contribution"] = (replicas, 1)
        self._by_turn: dict[int | None, tuple[OuterFragment, PushForm]] = {}
        whole = OuterFragment(
            {name: variable for one in fragments for name, variable in one.variables.items()},
            {name: node for one in fragments for name, node in one.differences.items()},
            [mutation for one in fragments for mutation in one.applied],
            {name: decay for one in fragments for name, decay in one.decays.items()},
        )
        turns: list[tuple[int | None, OuterFragment]] = [(None, whole), *enumerate(fragments)]
        for turn, fragment in turns:
            self._by_turn[turn] = fragment, _form_of(fragment, counts, step)

    def cut(self, copies: FragmentCopies, turn: int | None) -> _Cut:
        """Find what is to be pushed of copies.

        Args:
            copies: Not changed.
            turn: Which fragment; None for all.
        """
        fragment, _ = self._by_turn[turn]
        found = copies.differences(tuple(fragment.variables))
        for at, name in enumerate(fragment.variables):
            decay, began = fragment.decays[name], copies.began[name]
            if decay:
                found[at] = np.asarray(found[at] + began.dtype.type(decay) * began)
        oldest = min(copies.seen[name] for name in fragment.variables)
        return _Cut(turn, found, copies.step if self._together else oldest)

    def send(self, executor: Executor, cut: _Cut) -> Settled:
        """Push, and read what was pushed.

        Args:
            executor: Who pushes.
            cut: What.

        Raises:
            JobDoneError: If the job is done.
            OpError: What went wrong; nobody knows then what came of the push.
        """
        fragment, form = self._by_turn[cut.turn]
        push = form.push([*cut.differences, np.asarray(cut.base)])
        push.reads = [Read(variable.op_name) for variable in (*fragment.variables.values(), self.step)]
        push.layout = form
        executor.begin_write()
        result = executor.send(push, {})
        kind = result.outcome.kind
        # What was given up was not applied, and its steps are as good as before.
        found = None if kind is OutcomeKind.ABANDONED else executor.taken(result)
        *values, step = executor.pull(push.reads) if found is None else found
        return Settled(kind, dict(zip(fragment.variables, values, strict=True)), int(step))


class FragmentSteps:
    """Takes a worker's own steps. Not thread-safe.

    Args:
        model: Evaluates the loss.
        inner: Applies its gradients.
        pace: Measures how long the steps between two pushes take.

    Attributes:
        pace: As given.
        inner: As given.
    """

    def __init__(self, model: TrainingModel, inner: InnerOptimizer, pace: RoundPace) -> None:
        self.pace = pace
        self._model, self.inner = model, inner
        self._batches: Sequence[Any] = ()
        self._seeds: Sequence[int] = ()
        #: All that the model evaluates with, and those of it that are trained, with their positions.
        self.variables = dict(model.variables)
        self._wanted = {at: name for at, name in enumerate(self.variables) if self.variables[name].trainable}

    @property
    def count(self) -> int:
        """How many batches are kept."""
        return len(self._batches)

    def take(self, batches: Sequence[Any], seeds: Sequence[int]) -> dict[Any, Any]:
        """Keep the batches of the next steps, with a seed for each; see TrainingModel.take."""
        self._batches, self._seeds = list(batches), list(seeds)
        self.pace.begin_first()
        return {}

    def begun(self, values: Mapping[str, Array], step: int) -> FragmentCopies:
        """Begin with the values on the PS."""
        return FragmentCopies.of(values, step, self.inner.begun())

    def run(self, copies: FragmentCopies, begin: int, end: int) -> list[float]:
        """Take the steps of some of the batches.

        Args:
            copies: Changed in place.
            begin: The first batch.
            end: The one after the last.

        Returns:
            Their losses.
        """
        losses, wanted = [], tuple(self._wanted)
        for batch, seed in zip(self._batches[begin:end], self._seeds[begin:end], strict=True):
            self._model.take([batch], [seed])
            found = self._model.evaluate([read_only(copies.now[name]) for name in self.variables], wanted)
            losses.append(float(found.loss))
            gradients = dict(zip(self._wanted.values(), found.gradients, strict=True))
            self.inner.step(copies.state, copies.now, gradients)
        return losses


class FragmentRounds:
    """What a run of the train op does: steps on the copies, then the push of the fragment whose turn it is.

    With overlap that push is sent with the next run, while this takes its first steps. Not thread-safe.

    Args:
        steps: Takes the steps.
        pushes: Pushes.
        turns: Says whose turn it is.
        overlap: How many steps are taken while a push is under way; 0 for none.
        alpha: How much of the copies of what was under way stays.
    """

    def __init__(
        self, steps: FragmentSteps, pushes: FragmentPushes, turns: FragmentTurns, overlap: int, alpha: float
    ) -> None:
        self._steps, self._pushes, self._turns = steps, pushes, turns
        self._overlap, self._alpha = overlap, alpha
        self._copies: FragmentCopies | None = None
        self._incarnation = 0
        #: What the next run is to push.
        self._waiting: _Cut | None = None
        #: Whether a push was begun of which nobody knows what came of it, or that was not finite, as the copies are.
        self._unsure = False
        #: Whether the inner optimizer's state is of such copies.
        self._spoilt = False

    @property
    def given(self) -> frozenset[Node]:
        """The nodes for which a run is given values: the global step, as of the worker's last push."""
        return frozenset({self._pushes.step})

    def values(self, executor: Executor) -> dict[Node, Array]:
        """Give the values of `given`, as a run begins; reads the whole model where there is no copy that counts."""
        incarnation = executor.cluster.incarnation
        if self._copies is None or self._unsure or incarnation != self._incarnation:
            names = self._steps.variables
            reads = [Read(variable.op_name) for variable in (*names.values(), self._pushes.step)]
            *values, step = executor.pull(reads)
            begun = self._steps.begun(dict(zip(names, values, strict=True)), int(step))
            if self._copies is not None:
                state = self._copies.state
                begun.state = replace(begun.state, steps=state.steps) if self._spoilt else state
            self._spoilt = False
            self._copies, self._waiting, self._unsure = begun, None, False
            self._incarnation = incarnation
        return {self._pushes.step: np.asarray(self._copies.step, np.int64)}

    def take(self, executor: Executor, given: Sequence[Any]) -> Array:
        """Take the steps of the batches that were kept, and synchronize.

        Args:
            executor: Who runs it.
            given: Nothing.

        Returns:
            The mean of the losses.

        Raises:
            JobDoneError: If the job is done.
            InvalidArgumentError: If a loss is not finite. The copies are as before then, but for what was under way.
            OpError: What went wrong with a push.
        """
        before, self._copies = self._copies, None
        if before is None:
            raise InvalidArgumentError("The global step was fed to a run that takes local steps. Leave it out.")
        copies, size = before.writable(), self._steps.count
        waiting, self._waiting = self._waiting, None
        try:
            if waiting is None:
                losses = self._steps.run(copies, 0, size)
            else:
                with ThreadPoolExecutor(1, thread_name_prefix="globalstep-fragment") as pool:
                    losses = self._beside(pool.submit(self._send, executor, waiting), before, copies)
        except Exception:
            self._copies = before
            raise
        self._copies = copies
        self._steps.pace.end(size)
        cut = self._pushes.cut(copies, self._turns.next(copies.step))
        if self._overlap and cut.turn is not None:
            self._waiting = cut
        else:
            told = self._send(executor, cut)
            copies.settle(told.kind, told.values, told.step)
        self._steps.pace.begin()
        return np.asarray(np.mean(losses), np.float32)

    def _beside(self, under_way: Future[Settled], before: FragmentCopies, copies: FragmentCopies) -> list[float]:
        """Take steps while a push is under way, settle it, and take the rest."""
        first = min(self._overlap, self._steps.count)
        try:
            losses = self._steps.run(copies, 0, first)
            told = under_way.result()
            copies.settle(told.kind, told.values, told.step, self._alpha)
            return losses + self._steps.run(copies, first, self._steps.count)
        except Exception:
            # The steps are not taken; the push is what it has become all the same.
            told = under_way.result()
            before.settle(told.kind, told.values, told.step, self._alpha)
            raise

    def _send(self, executor: Executor, cut: _Cut) -> Settled:
        self._unsure = True
        told = self._pushes.send(executor, cut)
        self._unsure = self._spoilt = told.kind is OutcomeKind.DROPPED_NAN
        self._turns.made()
        return told


def _form_of(fragment: OuterFragment, counts: Mutation, step: Variable) -> PushForm:
    mutations = [*fragment.applied, counts]
    slots = {node: at for at, node in enumerate(fragment.differences.values())}
    hypers = {spec: spec.worker_hypers() for mutation in mutations for spec in mutation.uses}
    for spec, some in hypers.items():
        for name, value in some.items():
            if isinstance(value, Node):
                raise InvalidArgumentError(
                    f"local_steps with fragments: {name} of {spec.name} is {value.name!r}, which only a run can "
                    "compute. Give a number, a schedule of the global step, or a Variable."
                )
    slot_for: Callable[[Node, Any], int] = lambda node, _: slots[node]  # noqa: E731 (as a parameter it has no type)
    return PushForm(mutations, slot_for, hypers, frozenset(), (), (), [(step, len(slots))])
