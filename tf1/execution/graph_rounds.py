"""Rounds of local steps in a graph: a run takes one step on this worker's copies; one that fills a round pushes.

A run that takes such a step sees the copies in place of the Variables that it trains, and the global step as of the
round's beginning, so that runs within a round send and read nothing. One that fills a round pushes where the round
began minus where it ended, and reads the values that the next one begins with, in one message. It counts only as a
whole: where the push fails, the copies, and the inner optimizer, are as they were before the run, which can be run
again.

Layer: tf1.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.runtime.memory import seal
from globalstep.tf1.execution.local_variables import check_rows
from globalstep.tf1.execution.push_form import PushForm
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import OutcomeKind, Read
from globalstep.worker.step.own_optimizer import OwnOptimizer, OwnState

if TYPE_CHECKING:
    from globalstep.tf1.execution.executor import Executor

__all__ = ["TOO_LATE", "GraphRounds", "InnerSteps", "KnownSteps", "OuterPush", "rounds_in"]

Array = npt.NDArray[Any]

#: Nothing was applied, since others were quicker; the steps taken are as good as before.
TOO_LATE = (OutcomeKind.LATE, OutcomeKind.DROPPED_STALE)


@dataclass
class _Copies:
    """The copies of a worker, in a round under way.

    Attributes:
        began: By Variable: the values that it began with, on the PS. Arrays are replaced, never written into.
        now: The worker's copies.
        step: The global step as of `began`.
        taken: How many steps have been taken.
        inner: The inner optimizer's state.
    """

    began: Mapping[Variable, Array]
    now: Mapping[Variable, Array]
    step: Array
    taken: int
    inner: OwnState


@dataclass(frozen=True)
class InnerSteps:
    """Takes a worker's own steps, on its copies of the Variables.

    Attributes:
        optimizer: Applies the gradients.
        sparse: The Variables that are trained, in the order of their gradients, each with whether its gradient is of
            rows.
        hypers: The optimizer's hyper-parameters: numbers, functions, or None for one that the run computes.
        count: A node that is, in a run, the number of steps that were taken before.
    """

    optimizer: OwnOptimizer
    sparse: Mapping[Variable, bool]
    hypers: Mapping[str, float | Callable[[], Any] | None]
    count: Node

    def take(self, state: OwnState, now: Mapping[Variable, Array], values: Sequence[Any]) -> dict[Variable, Array]:
        """Take a step.

        Args:
            state: The optimizer's; changed.
            now: The copies; not changed.
            values: Gradients, of rows as values and indices; then the hyper-parameters that the run computes.

        Returns:
            The new copies.

        Raises:
            InvalidArgumentError: If a gradient's shape is not its Variable's; nothing is changed then.
        """
        left = iter(values)
        gradients: dict[Variable, tuple[Array, Array | None]] = {}
        for variable, by_rows in self.sparse.items():
            gradient = np.asarray(next(left))
            rows = np.asarray(next(left)).astype(np.int64, copy=False).reshape(-1) if by_rows else None
            _check_shape(variable, now[variable], gradient, rows)
            gradients[variable] = gradient, rows
        hypers = {
            name: float(next(left) if value is None else value() if callable(value) else value)
            for name, value in self.hypers.items()
        }
        new = {variable: np.array(value) for variable, value in now.items()}
        self.optimizer.step(state, new, gradients, hypers)
        seal(new.values())
        return new


@dataclass
class KnownSteps:
    """The last known values of steps, for learning rates that are functions of them.

    Attributes:
        own: How many steps of its own it has taken.
        counted: The global step, as last heard of.
    """

    own: int = 0
    counted: int = 0


class OuterPush:
    """Pushes the differences, and reads what the next round begins with.

    Args:
        applied: Applies the outer optimizer to `differences`, and moves the step on.
        differences: For each Variable, the node that stands for its difference.
        step: The global step.
        weight_decay: Part of each value that is added to its difference.
    """

    def __init__(
        self, applied: Mutation, differences: Mapping[Variable, Node], step: Variable, weight_decay: float
    ) -> None:
        self.variables = tuple(differences)
        self.step = step
        self._decay = weight_decay
        slots = {node: at for at, node in enumerate(differences.values())}
        hypers = {spec: spec.worker_hypers() for spec in applied.uses}
        self._form = PushForm(
            [applied], lambda node, _: slots[node], hypers, frozenset(), (*self.variables, step), (),
            [(step, len(slots))],
        )  # fmt: skip

    def reads(self) -> list[Read]:
        """Give what a round begins with: the Variables, and the step."""
        return [Read(variable.op_name) for variable in (*self.variables, self.step)]

    def send(self, executor: Executor, ended: _Copies) -> list[Any] | None:
        """Push the differences of a round that has ended; see Executor.push."""
        values = [self._decayed(ended.began[v] - ended.now[v], ended.began[v]) for v in self.variables]
        push = self._form.push([*map(np.asarray, values), ended.step])
        push.reads, push.layout = self.reads(), (self, 0)
        executor.begin_write()
        return executor.push(push, {})

    def _decayed(self, difference: Array, value: Array) -> Array:
        return difference + value.dtype.type(self._decay) * value if self._decay else difference


class GraphRounds:
    """The rounds of this process's workers, by the run and task that they belong to; they outlive a session.

    Thread-safe. Runs of several threads may overlap, but for their steps: while one thread takes one, that of another
    fails.

    Args:
        inner: The worker's own steps.
        every: How many make a round.
        push: What ends a round.
        known: Told of steps, as a run begins.
    """

    def __init__(self, inner: InnerSteps, every: int, push: OuterPush, steps: KnownSteps) -> None:
        self._inner, self._every, self._push, self._known = inner, every, push, steps
        # Guards all below; a leaf.
        self._lock = threading.Lock()
        self._by_run: dict[tuple[str, str], _Copies] = {}
        #: Of clients that know of no run's id.
        self._by_client: weakref.WeakKeyDictionary[Any, _Copies] = weakref.WeakKeyDictionary()
        self._stepping = False

    @property
    def given(self) -> frozenset[Node]:
        """The nodes whose values a run that takes a step gets from the round."""
        return frozenset((*self._push.variables, self._push.step, self._inner.count))

    def values(self, executor: Executor) -> dict[Node, Array]:
        """Give the values of `given`, as a run begins; reads them where no round is under way.

        Raises:
            InvalidArgumentError: For a session with pushes in flight.
            FailedPreconditionError: If a Variable has no value.
        """
        if executor.in_flight:
            raise InvalidArgumentError(
                "LocalStepsOptimizer does not go with pushes_in_flight: a round begins with the result of the last "
                "one's push. Leave pushes_in_flight out, and GLOBALSTEP_PUSHES_IN_FLIGHT."
            )
        copies = self._find(executor)
        if copies is None:
            copies = self._begin(executor.pull(self._push.reads()), self._inner.optimizer.begun())
            self._keep(executor, copies)
        self._known.own, self._known.counted = copies.inner.steps, int(copies.step)
        values: dict[Node, Array] = dict(copies.now.items())
        count = np.asarray(copies.inner.steps, np.int64)
        return values | {self._push.step: copies.step, self._inner.count: count}

    def take(self, executor: Executor, values: Sequence[Any]) -> None:
        """Take a step, and push if it fills the round.

        Args:
            executor: Who runs it.
            values: See InnerSteps.take.

        Raises:
            FailedPreconditionError: If another thread is taking one.
            JobDoneError: If the job is done; see Executor.push.
            OpError: What went wrong; nothing has changed then.
        """
        with self._one_at_a_time():
            before = self._find(executor)
            if before is None:
                raise FailedPreconditionError(
                    "A Variable that local steps train was given a new value while a run computed its gradient. Run "
                    "again."
                )
            fills = before.taken + 1 >= self._every
            state = before.inner.copy() if fills else before.inner
            now = self._inner.take(state, before.now, values)
            after = replace(before, now=now, taken=before.taken + 1, inner=state)
            self._keep(executor, self._ended(executor, after) if fills else after)

    def forget(self, executor: Executor, changed: Iterable[Variable]) -> None:
        """Begin anew with the next run, if the program has given a trained Variable a new value."""
        if not set(self._push.variables).isdisjoint(changed):
            self._keep(executor, None)

    def _ended(self, executor: Executor, ended: _Copies) -> _Copies:
        """Push what a round has come to; gives the next one."""
        answer = self._push.send(executor, ended)
        if answer is not None:
            return self._begin(answer, ended.inner)
        outcome = executor.last_outcome
        is_late = outcome is not None and outcome.kind in TOO_LATE
        # A difference that is not finite came of numbers that the inner optimizer has kept, too.
        state = ended.inner if is_late else self._inner.optimizer.begun()
        state.steps = ended.inner.steps
        following = self._begin(executor.pull(self._push.reads()), state)
        if is_late:
            # It is brought with the next round, which begins as far from the new values as this one ended.
            following.now = {v: following.began[v] - (ended.began[v] - ended.now[v]) for v in ended.now}
        return following

    def _begin(self, pulled: Sequence[Any], state: OwnState) -> _Copies:
        *values, step = pulled
        began = dict(zip(self._push.variables, values, strict=True))
        return _Copies(began, began, np.asarray(step), 0, state)

    def _place(self, executor: Executor) -> tuple[Any, Any]:
        """Give where the executor's round is kept, and by what key."""
        run, cluster = executor.cluster.run.identity.id, executor.cluster
        return (self._by_run, (run, cluster.task)) if run else (self._by_client, cluster)

    def _find(self, executor: Executor) -> _Copies | None:
        rounds, key = self._place(executor)
        with self._lock:
            copies: _Copies | None = rounds.get(key)
        return copies

    def _keep(self, executor: Executor, copies: _Copies | None) -> None:
        rounds, key = self._place(executor)
        with self._lock:
            if copies is None:
                rounds.pop(key, None)
            else:
                rounds[key] = copies

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        with self._lock:
            if self._stepping:
                raise FailedPreconditionError(
                    "Two threads run the train op of a LocalStepsOptimizer at once. A worker has one copy of the "
                    "model: run the train op from one thread; another thread's runs may evaluate."
                )
            self._stepping = True
        try:
            yield
        finally:
            with self._lock:
                self._stepping = False


def rounds_in(graph: Graph) -> list[GraphRounds]:
    """Give the local steps that a graph has, to which one may be added: none, or one."""
    rounds: list[GraphRounds] = graph.extras.setdefault(__name__, [])
    return rounds


def _check_shape(variable: Variable, value: Array, gradient: Array, rows: Array | None) -> None:
    wanted = value.shape if rows is None else (rows.size, *value.shape[1:])
    if gradient.size != np.prod(wanted) or (rows is None and gradient.shape != wanted):
        raise InvalidArgumentError(
            f"Variable {variable.op_name!r} has shape {value.shape}; its gradient has shape {gradient.shape}."
        )
    if rows is not None:
        check_rows(variable.op_name, value, rows)
