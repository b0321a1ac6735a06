"""What simulated workers push, and what must come of it: a model simple enough to be right at sight.

Every shard holds two float64 Variables under momentum, with their slots, and a row of counters. A push adds its own
gradient to the Variables, at a learning rate of one more than the step, with a momentum of 1: so the result depends on
which pushes were applied, in which order and at which step, and all numbers are integers, exact in float64. A push may
also count itself in the row, where a second application shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import Expr, constant, step
from globalstep.worker.waits.contributing import CLAIMED

__all__ = ["STEP", "Content", "State", "declarations", "names_on", "start_push", "step_push"]

STEP = "global_step"
OTHER = "other_step"
#: Rows of the counters; the pushes of a run share them.
ROWS = 16
_SIZES = {"a": 2, "b": 1}
_NUMBERS = sum(_SIZES.values())


@dataclass(frozen=True, slots=True)
class State:
    """A shard's values: Variables, slots, counters."""

    values: tuple[float, ...]
    slots: tuple[float, ...]
    counters: tuple[int, ...]

    def after(self, content: Content, rate: float) -> State:
        """Give the state after a push."""
        moved = self.moved(content.gradient, rate)
        slots, values, counters = moved.slots, moved.values, self.counters
        if content.counted:
            row = content.number % ROWS
            counters = (*counters[:row], counters[row] + 1, *counters[row + 1 :])
        return State(values, slots, counters)

    def moved(self, gradient: tuple[float, ...], rate: float) -> State:
        """Give the state after a gradient."""
        slots = tuple(slot + grad for slot, grad in zip(self.slots, gradient, strict=True))
        values = tuple(value - rate * slot for value, slot in zip(self.values, slots, strict=True))
        return State(values, slots, self.counters)

    def arrays(self) -> list[np.ndarray]:
        """Give it as the Variables of `names_on`."""
        a, b = slice(0, 2), slice(2, 3)
        return [
            np.array(self.values[a]),
            np.array(self.values[b]),
            np.array(self.slots[a]),
            np.array(self.slots[b]),
            np.array(self.counters, np.int64),
        ]

    @classmethod
    def of(cls, arrays: list[np.ndarray]) -> State:
        """Read it from the Variables of `names_on`."""
        a, b, slot_a, slot_b, counters = (array.tolist() for array in arrays)
        return cls((*a, *b), (*slot_a, *slot_b), tuple(counters))


EMPTY = State((0.0,) * _NUMBERS, (0.0,) * _NUMBERS, (0,) * ROWS)


@dataclass(eq=False, slots=True)
class Content:
    """What one call of `push` is to do.

    Attributes:
        number: Its own among all of a simulation.
        shards: On which it changes something.
        counted: Whether it counts itself.
        increments: What it carries.
        start: For the push that gives values: the state of each shard after it.
        steps: For that push: the steps after it.
        contributes: Of how many contributions its step is to be made; 0 for a push that moves it on by itself.
        base: For a contribution: the step that it was computed at.
        closes: It brings nothing, and asks that a step be made of what is there.
        unit: For a contribution: its unit of work; 0 for none.
    """

    number: int
    shards: tuple[int, ...] = ()
    counted: bool = False
    increments: dict[str, int] = field(default_factory=dict)
    start: dict[int, State] | None = None
    steps: dict[str, int] = field(default_factory=dict)
    contributes: int = 0
    base: int = 0
    closes: bool = False
    unit: int = 0

    @property
    def gradient(self) -> tuple[float, ...]:
        """The gradient on every shard, all numbers of a shard in one."""
        if self.unit:
            # Of what step and unit say, whoever computes it; in another order the sum is another one.
            return tuple((0.0, 1.0, -1e16, 1e16 + 6.0 * (self.base % 7 + at))[self.unit] for at in range(_NUMBERS))
        return tuple(float(self.number % 7 + at) for at in range(1, _NUMBERS + 1))

    def given(self) -> dict[str, Any]:
        """Give what it changes, as a history has it: slots and counters, which sums are made of, and steps."""
        if self.start is not None:
            pairs = [item for shard, state in self.start.items() for item in _named(shard, state)]
            return {"set": {**self.steps, **seen_values(*zip(*pairs, strict=True))}}
        by: dict[str, float] = {} if self.contributes else dict(self.increments)
        for shard in self.shards:
            for name, size, at in ((f"a{shard}", 2, 0), (f"b{shard}", 1, 2)):
                by |= {f"{name}/momentum[{item}]": self.gradient[at + item] for item in range(size)}
            if self.counted:
                by[f"c{shard}[{self.number % ROWS}]"] = 1
        if not self.contributes:
            return {"add": by}
        return {"add": by, "part": {"step": STEP, "base": self.base, "of": self.contributes, "unit": self.unit}}


def _named(shard: int, state: State) -> list[tuple[str, np.ndarray]]:
    return list(zip(names_on(shard), state.arrays(), strict=True))


def seen_values(names: Sequence[str], values: Sequence[Any]) -> dict[str, float]:
    """Give what was read, as a history has it; a Variable under momentum is no sum of what pushes add."""
    found: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        if name in (STEP, OTHER):
            found[name] = int(value)
        elif name.startswith("c") or name.endswith("momentum"):
            found |= {f"{name}[{at}]": number for at, number in enumerate(value.tolist())}
    return found


def names_on(shard: int) -> list[str]:
    """The Variables of a shard, steps apart."""
    return [f"a{shard}", f"b{shard}", f"a{shard}/momentum", f"b{shard}/momentum", f"c{shard}"]


def declarations(shards: int, sequencer: int) -> tuple[list[VariableDecl], list[OptimizerDecl]]:
    """The Variables of a run, and their optimizer."""
    variables = [VariableDecl(name, "int64", (), sequencer, is_step=True) for name in (STEP, OTHER)]
    slots: dict[str, tuple[str, ...]] = {}
    for shard in range(shards):
        for letter, size in _SIZES.items():
            name, slot = f"{letter}{shard}", f"{letter}{shard}/momentum"
            variables.append(VariableDecl(name, "float64", (size,), shard, trainable=True))
            variables.append(VariableDecl(slot, "float64", (size,), shard, False, False, name, "sgd", "momentum"))
            slots[name] = (slot,)
        variables.append(VariableDecl(f"c{shard}", "int64", (ROWS,), shard))
    hypers = {
        "learning_rate": Expr("add", (step(STEP), constant(1.0))),
        "momentum": constant(1.0),
        "use_nesterov": constant(0.0),
    }
    return variables, [OptimizerDecl("sgd", "momentum", hypers, slots)]


def start_push(content: Content) -> Push:
    """The push that gives every Variable its first or restored value."""
    assert content.start is not None
    ops = [Op(OpKind.ASSIGN, name, np.array(value, np.int64)) for name, value in content.steps.items()]
    for shard, state in content.start.items():
        ops += [Op(OpKind.ASSIGN, name, value) for name, value in zip(names_on(shard), state.arrays(), strict=True)]
    return Push(ops=ops)


def step_push(content: Content, reads: tuple[str, ...], seen: dict[str, int]) -> Push:
    """A training push; one that does not count itself is described to each shard only once."""
    gradient = content.gradient
    # Means of rows are rounded otherwise than those of whole gradients.
    of_rows = not content.counted and not content.contributes and content.number % 4 == 1
    ops = []
    for shard in content.shards:
        ops.append(Op(OpKind.APPLY, f"a{shard}", np.array(gradient[:2]), optimizer="sgd"))
        if of_rows:
            ops.append(_by_rows(f"b{shard}", gradient[2:], content.number // 4 % 3))
        else:
            ops.append(Op(OpKind.APPLY, f"b{shard}", np.array(gradient[2:]), optimizer="sgd"))
        if content.counted:
            row = np.array([content.number % ROWS])
            ops.append(Op(OpKind.ASSIGN_ADD, f"c{shard}", np.array([1]), indices=row))
    return Push(
        ops=ops,
        increments=[
            Increment(name, by, content.contributes, unit=CLAIMED if content.unit else 0)
            for name, by in content.increments.items()
        ],
        uses=[OptimizerUse("sgd")],
        reads=[Read(name) for name in reads],
        seen_steps={STEP: content.base} if content.contributes else seen,
        layout=None
        if content.counted
        else (content.shards, reads, tuple(content.increments), content.contributes, of_rows),
    )


def _by_rows(name: str, gradient: tuple[float, ...], more: int) -> Op:
    """A gradient row by row, the first one in so many parts more."""
    rows = np.array([gradient[0] - more, *gradient[1:], *[1.0] * more])
    ids = np.array([*range(len(gradient)), *[0] * more])
    return Op(OpKind.APPLY, name, rows, indices=ids, optimizer="sgd")
