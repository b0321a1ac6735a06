"""Declarations of Variables and optimizers, and parts of a push: what crosses the wire, as plain data.

Both sides speak in these; `globalstep.wire.codec` turns them into protobuf messages and back. The store and
the rules know only these, never protobuf.

Layer: shared. Imports nothing of globalstep but expressions.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from globalstep.wire.draws import Draw
from globalstep.wire.expressions import Expr

Array = npt.NDArray[Any]
_VARIABLE = attrgetter("variable")

#: Every tensor of a message starts at a multiple of this many bytes in its data.
ALIGNMENT = 8


def padded(nbytes: int) -> int:
    """Give `nbytes` rounded up to the alignment.

    >>> padded(9)
    16
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of a Variable that lie on one PS task."""

    shard: int
    first: int
    #: One past the last.
    end: int


@dataclass(frozen=True, slots=True)
class VariableDecl:
    """A named array that a PS holds: a Variable, a slot, a moving average, or a step."""

    name: str
    #: numpy's name of the dtype, e.g. "float32".
    dtype: str
    shape: tuple[int, ...]
    #: Index of the PS task that holds it.
    shard: int = 0
    trainable: bool = False
    #: Whether pushes may increment it as a step; every step lives on the sequencer.
    is_step: bool = False
    #: For a slot: the Variable it belongs to, the optimizer's name and the slot's own name.
    primary: str = ""
    optimizer: str = ""
    slot: str = ""
    #: For a Variable that is split over several PS tasks, as programs see it: which rows lie where, in order.
    parts: tuple[RowRange, ...] = ()
    #: For such a part, as a PS task holds it: the Variable's name, where the part's rows begin, and how many
    #: rows the Variable has.
    whole: str = ""
    first_row: int = 0
    whole_rows: int = 0
    #: For a step: by how much the program's pushes move it on, besides 1.
    increments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OptimizerDecl:
    """An update rule bound to Variables: what the PS needs to apply a pushed gradient by itself."""

    #: Unique in the run; the optimizer's name in the graph, e.g. "Adam" or "Adam_1".
    name: str
    #: The rule's kind as in `globalstep.rules`, e.g. "gradient_descent".
    kind: str
    #: Hyper-parameters: constants, or expressions over steps and scalar Variables that the sequencer
    #: evaluates for each push.
    hypers: Mapping[str, Expr] = field(default_factory=dict)
    #: Variable name -> names of its slot Variables, in the rule's order.
    slots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Names of the rule's scalar state Variables (Adam's beta powers), in the rule's order; they live on
    #: the sequencer.
    scalars: tuple[str, ...] = ()
    use_locking: bool = False


class OpKind(enum.IntEnum):
    """What an Op does to its Variable. The numbers are those of the wire."""

    APPLY = 1
    ASSIGN = 2
    ASSIGN_ADD = 3
    ASSIGN_SUB = 4


@dataclass(slots=True)
class Op:
    """One change of one Variable within a push.

    Exactly one of `value`, `fill` and `source` says with what. `indices` makes it sparse: row
    `value[i]` belongs to row `indices[i]` of the Variable; ids may repeat.
    """

    kind: OpKind
    variable: str
    #: Gradient or operand; the Variable's dtype and shape, or [n, *shape[1:]] when sparse.
    value: Array | None = None
    #: A number for every element instead of an array (initial zeros cost no bytes), or what draws them.
    fill: float | Draw | None = None
    #: Name of a Variable on the same shard whose present value is the operand.
    source: str = ""
    #: int64 [n], for a sparse op.
    indices: Array | None = None
    #: For APPLY: the OptimizerDecl's name.
    optimizer: str = ""
    #: Rows repeat no id: the receiver need not merge them.
    unique: bool = False
    #: Whether it comes after the push's increments, which only its hyper-parameters can tell.
    after_increment: bool = False

    def of_rows(self, indices: Array, value: Array) -> Op:
        """Give the same change of rows that repeat no id; `dataclasses.replace` takes ten times as long."""
        return Op(
            self.kind, self.variable, value, self.fill, self.source, indices, self.optimizer, True, self.after_increment
        )


@dataclass(frozen=True, slots=True)
class Increment:
    """A step that a push moves on, and by how much."""

    step: str
    by: int = 1
    #: The push is a contribution: so many of them, computed from the same value of the step, move it on together. 0 for
    #: a push that moves it on by itself.
    contributions: int = 0
    #: Of a contribution: how many of one client count for one step; 0 for one.
    most_of_client: int = 0
    #: The push is no contribution, and asks that the step be made of those that are there.
    closes: bool = False
    #: Of a contribution: which of the step's units of work it is, from 1; 0 for none.
    unit: int = 0


@dataclass(frozen=True, slots=True)
class OptimizerUse:
    """An optimizer that a push applies: the sequencer evaluates its hyper-parameters once for all shards."""

    optimizer: str
    #: Whether the hyper-parameters see the steps after this push's increments (moving averages that
    #: follow the train op) or before them (TensorFlow's rule for learning rates).
    after_increment: bool = False
    #: Whether the optimizer's scalar state (beta powers) moves on with this push.
    finish: bool = True
    #: Hyper-parameters that the worker computed itself (callables).
    overrides: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Read:
    """A Variable whose value is wanted, or some of its rows (int64 [n] ids; they may repeat)."""

    variable: str
    indices: Array | None = None


class PushId(NamedTuple):
    """Who pushed, and the number of the push among that client's, from 1."""

    client: str
    sequence: int


@dataclass(slots=True)
class Push:
    """All that one push changes, over all shards, and what it wants to read right after itself."""

    ops: Sequence[Op] = field(default_factory=list)
    increments: list[Increment] = field(default_factory=list)
    uses: list[OptimizerUse] = field(default_factory=list)
    reads: Sequence[Read] = field(default_factory=list)
    #: Step name -> value that the worker computed from, for staleness.
    seen_steps: Mapping[str, int] = field(default_factory=dict)
    #: Any hashable: pushes of the same one have the same ops, increments, uses and reads, and values of the
    #: same dtypes and shapes in them, but for how many rows and which, so that they are described once. None where that
    #: is not so.
    layout: object = None
    #: Shards that take part though the push changes and reads nothing there: what closes an aggregate.
    beside: tuple[int, ...] = ()
    #: Of a contribution: how long the answer may wait for the step to be made.
    patience_ms: int = 0

    def again(
        self,
        values: list[Array | None],
        uses: list[OptimizerUse] | None = None,
        reads: Sequence[Read] | None = None,
        seen_steps: Mapping[str, int] | None = None,
    ) -> Push:
        """Give the push of the same ops with other values, which takes much less than to make all its ops anew.

        Args:
            values: The value of each op, in order; None for one without. The push's from now on.
            uses: In place of this one's.
            reads: In place of this one's.
            seen_steps: In place of this one's.

        >>> first = Push([Op(OpKind.APPLY, "w", np.zeros(2), optimizer="Adam")], [Increment("step")], layout="train")
        >>> first.again([np.ones(2)]).ops[0]
        Op(kind=<OpKind.APPLY: 1>, variable='w', value=array([1., 1.]), fill=None, source='', indices=None, \
optimizer='Adam', unique=False, after_increment=False)
        """
        return Push(
            _OpsAlike(self.ops, values),
            self.increments,
            self.uses if uses is None else uses,
            self.reads if reads is None else reads,
            self.seen_steps if seen_steps is None else seen_steps,
            self.layout,
            self.beside,
        )

    def of_ops(self, ops: Sequence[Op], reads: Sequence[Read]) -> Push:
        """Give the push with other changes and reads."""
        return Push(
            ops,
            self.increments,
            self.uses,
            reads,
            self.seen_steps,
            self.layout,
            self.beside,
            self.patience_ms,
        )

    @property
    def values(self) -> list[Array | None]:
        """The value of each op, in order; not to be changed where `ops` is a plain list."""
        ops = self.ops
        return ops.values if isinstance(ops, _OpsAlike) else [op.value for op in ops]

    @property
    def variables(self) -> list[str]:
        """The Variable of each op, in order."""
        ops = self.ops
        return [op.variable for op in (ops.first if isinstance(ops, _OpsAlike) else ops)]

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The Variables that it changes, and those that it reads, in order."""
        return list(map(_VARIABLE, self.ops)), list(map(_VARIABLE, self.reads))

    @property
    def has_rows(self) -> bool:
        """Whether it changes or reads some rows of a Variable."""
        return any(op.indices is not None for op in self.ops) or any(read.indices is not None for read in self.reads)

    def set_value(self, at: int, value: Array) -> None:
        """Give one of its ops another value."""
        if isinstance(self.ops, _OpsAlike):
            self.ops.values[at] = value
        else:
            self.ops[at].value = value


class _OpsAlike(Sequence[Op]):
    """The ops of a push with other values, each made when it is asked for."""

    __slots__ = ("first", "values")

    def __init__(self, ops: Sequence[Op], values: list[Array | None]) -> None:
        #: Those of the first push, with its values.
        self.first: Sequence[Op] = ops.first if isinstance(ops, _OpsAlike) else ops
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, at: int) -> Op: ...

    @overload
    def __getitem__(self, at: slice) -> list[Op]: ...

    def __getitem__(self, at: int | slice) -> Op | list[Op]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        return replace(self.first[at], value=self.values[at])


class State(enum.IntEnum):
    """The state of a PS task. The numbers are those of the wire."""

    VACANT = 1
    INITIALIZING = 2
    READY = 3
    DONE = 4


class OutcomeKind(enum.IntEnum):
    """What became of a push. The numbers are those of the wire."""

    ACCEPTED = 1
    #: Refused: a step it carries has reached its limit; nothing was applied.
    REFUSED_DONE = 2
    #: Refused: the run's staleness policy dropped it; nothing was applied.
    DROPPED_STALE = 3
    #: The sequencer gave up on it after its worker was gone; nothing was applied.
    ABANDONED = 4
    #: Refused: a gradient was not finite, and the run's policy does not apply such pushes; nothing was applied.
    DROPPED_NAN = 5
    #: As DROPPED_NAN, and by the run's policy the job ends with it.
    STOPPED_NAN = 6
    #: A contribution that does not count: its step has been made, or its client has given as many as it may; nothing
    #: was applied.
    LATE = 7


@dataclass(slots=True)
class Outcome:
    """The recorded answer to a push; the same for every retry of it."""

    kind: OutcomeKind
    #: Its place in the run's mutation sequence, from 1; 0 when refused.
    index: int = 0
    #: Steps right after it (for a refused push: at the refusal).
    steps: Mapping[str, int] = field(default_factory=dict)
    #: Largest number of increments of a carried step between the worker's read and this push.
    staleness: int = 0
    #: Whether this is the answer to a retry.
    duplicate: bool = False
    #: Of a push that was dropped as not finite: a Variable whose gradient was not.
    not_finite: str = ""


@dataclass(frozen=True, slots=True)
class StopLimit:
    """Beyond which value of a step no push is accepted: an absolute value, or a number from now."""

    step: str
    last_step: int | None = None
    num_steps: int | None = None


def nbytes_of(decl: VariableDecl) -> int:
    """Size of a Variable's value in bytes."""
    return int(np.dtype(decl.dtype).itemsize * int(np.prod(decl.shape, dtype=np.int64)))
