"""Push template of a plan's round: what all its pushes have in common, found once; a run only adds its numbers.

Layer: tf1. Threads: a PushForm is not changed by use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.execution.local_optimizers import LocalUse
from globalstep.tf1.execution.plan_joining import specs_of
from globalstep.tf1.execution.pushing import as_fill, is_declaring, operand_of
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.mutations import Move, Mutation, MutationPart, OptimizerSpec
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Push, Read

__all__ = ["Change", "PushForm"]

_dtype_of = attrgetter("dtype")
#: Gives the slot of a node's value as a mutation is to see it.
SlotFor = Callable[[Node, Node], int]


class Change(NamedTuple):
    """One part of a mutation, with the slots of its operand and indices, where it has them."""

    part: MutationPart
    #: Of its Op: kind, Variable, source, optimizer, unique, after_increment.
    same: tuple[OpKind, str, str, str, bool, bool]
    dtype: np.dtype[Any]
    operand: int | None
    indices: int | None

    def alike(self) -> Op:
        """Give what the Op of every run has."""
        kind, name, source, optimizer, unique, after = self.same
        return Op(kind, name, None, None, source, None, optimizer, unique, after)

    def made(self, values: Sequence[Any]) -> Op:
        """Give the Op of a run whose slots hold `values`."""
        part, (kind, name, source, optimizer, unique, after), dtype, operand, ids = self
        if operand is None:
            return Op(kind, name, None, part.fill, source, None, optimizer, unique, after)
        value = values[operand]
        if type(value) is not np.ndarray or value.dtype is not dtype:
            value = operand_of(part, value)
        if ids is not None:
            indices = np.asarray(values[ids], dtype=np.int64)
            if indices.ndim != 1:
                value = value.reshape(indices.size, *value.shape[indices.ndim :])
                indices = indices.reshape(-1)
            return Op(kind, name, value, None, source, indices, optimizer, unique, after)
        if part.declare and (fill := as_fill(value)) is not None:
            return Op(kind, name, None, fill, source, None, optimizer, unique, after)
        return Op(kind, name, value, None, source, None, optimizer, unique, after)


class PushForm:
    """See the module's text.

    Args:
        mutations: Of the round, in order.
        slot_for: As above.
        worker_hypers: For each optimizer, the hyper-parameters that this worker evaluates.
        wanted: Mutations whose value is wanted.
        ahead: What the next round reads whole.
        again: What the next run of the plan reads whole.
        steps: Steps that the run has read, each with its slot.

    Attributes:
        local: Changes of Variables that live in the session.
        local_uses: The optimizers that are applied to these.
        wanted: Those of the mutations whose value is wanted, each with its Variable.
        shared: Variables of these that live on the PS.
        ahead: As given.
        again: As given.
        reading: What the push reads: without what the next run of the plan does, and with it.
        declaring: Changes that give a Variable its whole value.
        layout: Of its pushes, which differ in numbers only; None where they may move steps by other numbers, too.
        is_empty: Whether there is nothing to push.
        only_changes: Whether the run has nothing to do with the push but to send it: it changes Variables on the PS
            that have their values, and the run wants none of these.
    """

    def __init__(
        self,
        mutations: Sequence[Mutation],
        slot_for: SlotFor,
        worker_hypers: Mapping[OptimizerSpec, Mapping[str, Any]],
        wanted: frozenset[Mutation],
        ahead: Sequence[Variable],
        again: Sequence[Variable],
        steps: Sequence[tuple[Variable, int]],
    ) -> None:
        changes = [_change(part, mutation, slot_for) for mutation in mutations for part in mutation.changes]
        self._changes = tuple(change for change in changes if not change.part.variable.is_local)
        self.local = tuple(change for change in changes if change.part.variable.is_local)
        self.declaring = tuple(change for change in self._changes if is_declaring(change.part))
        moves = [(move, mutation) for mutation in mutations for move in mutation.moves]
        self._increments = _increments(mutations, moves)
        # Of each of them that a node's value multiplies: its place, the step, and the value's slot.
        self._times = [
            (at, move.step, slot_for(move.times, mutation))
            for at, (move, mutation) in enumerate(moves)
            if move.times is not None
        ]
        self.layout = None if self._times else self
        uses = _uses(mutations, slot_for, worker_hypers)
        self._uses = [(use, hypers) for spec, use, hypers in uses if not spec.is_local]
        self.local_uses = tuple(
            LocalUse(spec, use.finish, partial(_numbers, hypers)) for spec, use, hypers in uses if spec.is_local
        )
        constant = [use for use, hypers in self._uses if not hypers]
        # None where some hyper-parameters are to be evaluated.
        self._known_uses = constant if len(constant) == len(self._uses) else None
        self.wanted = tuple((m, m.value_of) for m in mutations if m in wanted and m.value_of is not None)
        self.shared = tuple(variable for _, variable in self.wanted if not variable.is_local)
        self.ahead, self.again = tuple(ahead), tuple(again)
        self.reading = _reading((*self.shared, *ahead)), _reading((*self.shared, *ahead, *again))
        self._steps = [step.op_name for step, _ in steps]
        self._step_slots = [slot for _, slot in steps]
        # What every push of the round is but for its values; None where more than values differs.
        self._alike: Push | None = None
        fixed = all(c.operand is not None and c.indices is None and not c.part.declare for c in self._changes)
        if fixed and not self._times:
            self._alike = Push([change.alike() for change in self._changes], self._increments)
        # Of each change: its part, where its operand is, and what that is where nothing needs to be converted.
        self._parts = [change.part for change in self._changes]
        self._slots = [change.operand for change in self._changes if change.operand is not None]
        self._types = [np.ndarray] * len(self._changes)
        self._dtypes = [change.dtype for change in self._changes]
        self.is_empty = not (self._changes or self._increments or self._uses)
        more = self.declaring, self.local, self.local_uses, self.wanted, self.ahead, self._times
        self.only_changes = not self.is_empty and not any(more)

    def push(self, values: Sequence[Any]) -> Push:
        """Make the push of a run, without its reads.

        Args:
            values: The run's slots.

        Raises:
            InvalidArgumentError: If an operand does not fit its Variable, or a hyper-parameter or what is added to a
                step is no number.
        """
        uses = self._known_uses
        if uses is None:
            uses = [use if not hypers else _evaluated(use, hypers, values) for use, hypers in self._uses]
        seen_steps = dict(zip(self._steps, map(int, map(values.__getitem__, self._step_slots)), strict=True))
        if self._alike is not None:
            operands: list[Any] = list(map(values.__getitem__, self._slots))
            if list(map(type, operands)) != self._types or list(map(_dtype_of, operands)) != self._dtypes:
                operands = list(map(operand_of, self._parts, operands))
            return self._alike.again(operands, uses, None, seen_steps)
        increments = list(self._increments)
        for at, step, slot in self._times:
            increments[at] = replace(increments[at], by=increments[at].by * _amount(step, values[slot]))
        return Push([change.made(values) for change in self._changes], increments, uses, seen_steps=seen_steps)

    def whole_values(self, values: Sequence[Any]) -> dict[Variable, tuple[int, ...]]:
        """Give the Variables that a run gives their whole value, with the value's shape."""
        shapes: dict[Variable, tuple[int, ...]] = {}
        for change in self.declaring:
            variable = change.part.variable
            if variable.shape.is_fully_defined():
                shapes[variable] = tuple(int(size) for size in variable.shape)
            elif change.operand is not None:
                shapes[variable] = np.shape(values[change.operand])
        return shapes


def _amount(step: Variable, value: Any) -> int:
    if np.shape(value) != ():
        raise InvalidArgumentError(
            f"What is added to step {step.op_name!r} must be one number; this run gave an array of shape "
            f"{list(np.shape(value))}. Use gs.reduce_sum, or gs.squeeze."
        )
    return int(value)


def _increments(mutations: Sequence[Mutation], moves: Sequence[tuple[Move, Mutation]]) -> list[Increment]:
    """The steps that a push moves on, by itself or together with other workers' contributions."""
    steps = [Increment(move.step.op_name, move.by, *mutation.attrs.get("contribution", ())) for move, mutation in moves]
    if not steps and any("contribution" in mutation.attrs for mutation in mutations):
        names = ", ".join(mutation.name for mutation in mutations)
        raise InvalidArgumentError(
            f"{names} belongs to a step that is made of several contributions, and cannot be part of the push that "
            "makes it: what it computes with changes within that push. Average Variables, with a decay that depends on "
            "nothing but the step."
        )
    return steps


def _change(part: MutationPart, mutation: Mutation, slot_for: SlotFor) -> Change:
    return Change(
        part,
        (
            part.kind,
            part.variable.op_name,
            "" if part.source is None else part.source.op_name,
            "" if part.optimizer is None else part.optimizer.name,
            part.unique,
            mutation.after_increment,
        ),
        np.dtype(part.variable.dtype.as_numpy_dtype),
        None if part.operand is None else slot_for(part.operand, mutation),
        None if part.indices is None else slot_for(part.indices, mutation),
    )


def _reading(variables: Sequence[Variable]) -> tuple[tuple[Variable, ...], list[Read]]:
    each = tuple(dict.fromkeys(variables))
    return each, [Read(variable.op_name) for variable in each]


class _Hyper(NamedTuple):
    """A hyper-parameter that the worker evaluates: from a slot, or by a function."""

    spec: OptimizerSpec
    name: str
    slot: int | None
    given: Any


def _uses(
    mutations: Sequence[Mutation], slot_for: SlotFor, worker_hypers: Mapping[OptimizerSpec, Mapping[str, Any]]
) -> list[tuple[OptimizerSpec, OptimizerUse, list[_Hyper]]]:
    """The optimizers that a push uses, each with the hyper-parameters that the worker evaluates."""
    uses: dict[OptimizerSpec, tuple[OptimizerUse, list[_Hyper]]] = {}
    for mutation in mutations:
        for spec in specs_of(mutation):
            use, hypers = uses.get(spec) or (None, [])
            if use is None:
                for name, hyper in worker_hypers.get(spec, {}).items():
                    of_node = isinstance(hyper, Node)
                    hypers.append(_Hyper(spec, name, slot_for(hyper, mutation) if of_node else None, hyper))
            finish = spec in mutation.uses or (use is not None and use.finish)
            uses[spec] = OptimizerUse(spec.name, mutation.after_increment, finish), hypers
    return [(spec, use, hypers) for spec, (use, hypers) in uses.items()]


def _evaluated(use: OptimizerUse, hypers: Sequence[_Hyper], values: Sequence[Any]) -> OptimizerUse:
    return OptimizerUse(use.optimizer, use.after_increment, use.finish, _numbers(hypers, values))


def _numbers(hypers: Sequence[_Hyper], values: Sequence[Any]) -> dict[str, float]:
    return {hyper.name: _number(hyper, values) for hyper in hypers}


def _number(hyper: _Hyper, values: Sequence[Any]) -> float:
    value = hyper.given() if hyper.slot is None else values[hyper.slot]
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"The {hyper.name} of optimizer {hyper.spec.name!r} must be one number; this run gave {value!r}."
        ) from None
