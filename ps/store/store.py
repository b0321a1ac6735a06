"""The Variables of one shard, and the changes that a push makes to them.

A pure state machine: no I/O, no lock, no clock, no protobuf. `ps/shard/shard.py` owns it and calls it under its
lock. Where the arrays lie, and why a push of many Variables is one kernel call, is `ps/store/arena.py`'s.

Layer: ps. Single thread: the caller's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PermissionDeniedError
from globalstep.ps.budget import SMALL_BYTES, ReplyBuffer
from globalstep.ps.store.arena import ApplySpan, Held, PushPlan, Total, copies, lay_out, plan_reads, plan_runs
from globalstep.ps.store.checking import (
    check_indices,
    check_memory,
    check_operand,
    check_variables,
    no_memory_to_hold,
    no_memory_to_read,
    too_much_read,
)
from globalstep.ps.store.cores import ONE_CORE, Cores
from globalstep.ps.store.optimizer_table import OptimizerTable, check_slot
from globalstep.rules import merge_rows
from globalstep.rules.rule import Hypers, Rule
from globalstep.runtime.memory import address_of
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Read, VariableDecl, padded
from globalstep.wire.draws import Draw
from globalstep.wire.names import shown

__all__ = ["HyperMap", "PushPlan", "VariableStore", "apply_rows", "read_now", "scatter_rows"]

Array = npt.NDArray[Any]

#: Rows of fewer bytes are added one after another: that takes less time than to find out which are equal.
_MERGED_BYTES = 1 << 15
_MERGED_KINDS = "fiu"
#: (optimizer, after_increment) -> its hyper-parameters and scalar state for one push.
HyperMap = Mapping[tuple[str, bool], Mapping[str, float]]


#: Stores of one process follow each other, and what was planned for one must not be taken for another's.
_FIRST_VERSIONS = itertools.count(0, 1 << 32)


@dataclass(slots=True)
class VariableStore:
    """Named arrays with their update rules.

    Attributes:
        version: Changes whenever a check that has passed might come out otherwise; of no other store.
        most_read_bytes: The most that one message may read.
        value_bytes: Of all Variables and slots.
        variable_count: How many Variables are declared, slots included.
    """

    most_read_bytes: int = 1 << 62
    value_bytes: int = 0
    variable_count: int = 0

    version: int = field(default_factory=_FIRST_VERSIONS.__next__)
    _held: dict[str, Held] = field(default_factory=dict)
    _optimizers: OptimizerTable = field(default_factory=OptimizerTable)
    #: Gives an optimizer's declaration and rule: OptimizerTable.get.
    optimizer: Callable[[str], tuple[OptimizerDecl, Rule]] = field(init=False)
    # How pushes of a known layout split into runs: a cache.
    _run_plans: dict[tuple[Any, ...], list[ApplySpan]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.optimizer = self._optimizers.get

    # ---- Declarations -----------------------------------------------------------------------

    def declare(
        self, variables: Sequence[VariableDecl], optimizers: Sequence[OptimizerDecl], nothing_new: bool = False
    ) -> None:
        """Declare Variables and optimizers; equal declarations that are there already stay.

        Args:
            variables: Those of this shard.
            optimizers: All of the run's; one that a later program declares with more Variables grows.
            nothing_new: Refuse what is not known already.

        Raises:
            AlreadyExistsError: If something is declared differently from before, or a slot is another's. Nothing is
                changed.
            InvalidArgumentError: If a declaration does not fit in itself: see `check_variables` and
                OptimizerTable.examine. Nothing is changed.
            ResourceExhaustedError: If there are too many, or the machine could not hold them. Nothing is changed.
            PermissionDeniedError: If something is new that must not be. Nothing is changed.
        """
        fresh = check_variables(variables, {name: held.decl for name, held in self._held.items()})
        check_memory(fresh.values(), (held.decl for held in self._held.values()))

        def find(name: str) -> VariableDecl | None:
            held = self._held.get(name)
            return fresh.get(name) if held is None else held.decl

        growth = self._optimizers.examine(optimizers, fresh.values(), find)
        if nothing_new and (fresh or growth.optimizers):
            first = shown(next(iter(fresh or growth.optimizers)))
            raise PermissionDeniedError(
                f"The chief's program does not declare {first} so: nothing else is accepted (--no-worker-assigns)."
            )
        try:
            laid = lay_out(list(fresh.values()), self._optimizers.grown_by(growth))
        except MemoryError:  # a process may be given less than its machine has
            raise no_memory_to_hold(fresh.values()) from None
        self._optimizers.adopt(growth)
        self._held.update(laid)
        self.value_bytes, self.variable_count = self.nbytes(), len(self._held)
        self._run_plans.clear()
        self.version += 1

    def declaration(self, name: str) -> VariableDecl | None:
        """Give a Variable's declaration; None where there is none of that name."""
        held = self._held.get(name)
        return None if held is None else held.decl

    def trained_by(self, name: str) -> Sequence[str]:
        """Give the optimizers that are declared for a Variable."""
        return self._optimizers.trained_by(name)

    @property
    def variables(self) -> list[VariableDecl]:
        """What is declared, in order."""
        return [held.decl for held in self._held.values()]

    @property
    def optimizers(self) -> list[OptimizerDecl]:
        """What is declared, in order."""
        return self._optimizers.declarations

    def uninitialized(self) -> list[str]:
        """Names of Variables without a value yet, in order of declaration."""
        return [name for name, held in self._held.items() if not held.initialized]

    def nbytes(self) -> int:
        """Bytes of all values and slots."""
        return sum(held.flat.nbytes for held in self._held.values())

    def _find(self, name: str, what: str) -> Held:
        held = self._held.get(name)
        if held is None:
            names = ", ".join(sorted(self._held)[:8]) + (", ..." if len(self._held) > 8 else "")
            raise NotFoundError(f"{what} names Variable {name!r}, which this shard does not hold; it holds {names}")
        return held

    # ---- Changes ----------------------------------------------------------------------------

    def check(self, ops: Sequence[Op], reads: Sequence[Read] = ()) -> None:
        """Refuse changes that could not be applied, or reads that could not be answered after them.

        Changes nothing.

        Raises:
            InvalidArgumentError: For a wrong shape, dtype, index or operand.
            NotFoundError: For an unknown Variable or optimizer.
            FailedPreconditionError: For a change of a Variable that has no value yet.
        """
        assigned: set[str] = set()
        for op in ops:
            held = self._find(op.variable, "A change")
            if op.kind is OpKind.ASSIGN and op.indices is None:
                assigned.add(op.variable)
            elif not held.initialized and op.variable not in assigned:
                raise FailedPreconditionError(f"Attempting to use uninitialized value {op.variable}")
            check_operand(op, held, self._find(op.source, f"A change of {op.variable!r}") if op.source else None)
            if op.kind is OpKind.APPLY:
                self._check_apply(op, held, assigned)
            elif op.optimizer:
                raise InvalidArgumentError(f"An assign of {op.variable!r} names optimizer {op.optimizer!r}.")
        self._check_reads(reads, assigned)

    def _check_apply(self, op: Op, held: Held, assigned: set[str]) -> None:
        decl, rule = self.optimizer(op.optimizer)
        if op.variable not in decl.slots:
            raise InvalidArgumentError(
                f"Optimizer {op.optimizer!r} is not declared for Variable {op.variable!r}; it trains "
                f"{sorted(decl.slots)}."
            )
        if held.flat.dtype.kind != "f":
            raise InvalidArgumentError(
                f"Variable {op.variable!r} is {held.decl.dtype}; {op.optimizer!r} updates floating point only."
            )
        for slot in decl.slots[op.variable]:
            state = self._find(slot, f"Optimizer {op.optimizer!r}")
            check_slot(state.decl, op.optimizer, held.decl, op.variable, rule.by_rows)
            if not state.initialized and slot not in assigned:
                raise FailedPreconditionError(f"Attempting to use uninitialized value {slot}")

    def apply(self, ops: Sequence[Op], hypers: HyperMap, data: memoryview | None = None) -> None:
        """Make the changes, in order; `check` has passed them.

        Args:
            ops: The changes. Dense gradients that are views into `data` and neighbours both there and
                here are applied in one kernel call.
            hypers: Evaluated hyper-parameters of every optimizer that the changes use.
            data: The bytes that the ops' arrays are views into, where they are.
        """
        at = 0
        while at < len(ops):
            last = at
            while last < len(ops) and data is not None and self._is_plain_apply(ops[last]):
                last += 1
            if last > at and data is not None:
                for run in self._runs(ops[at:last], data):
                    grad = np.frombuffer(data, run.values.dtype, run.count, run.offset)
                    run.rule.dense(run.values, run.slots, grad, hypers[run.key])
                at = last
            else:
                self._apply_one(ops[at], hypers)
                at += 1

    def plan(self, ops: Sequence[Op], reads: Sequence[Read], data: memoryview) -> PushPlan:
        """Check a push of dense gradients and plan it, for all pushes that are laid out alike.

        Args:
            ops: APPLYs, bound to `data`.
            reads: Whole Variables.
            data: The bytes of one such push.

        Raises:
            As `check`.
        """
        self.check(ops, reads)
        steps: list[ApplySpan | Op] = []
        at = 0
        while at < len(ops):
            last = at
            while last < len(ops) and self._is_plain_apply(ops[last]):
                last += 1
            steps += [replace(run) for run in self._runs(ops[at:last], data)] if last > at else [ops[at]]
            at = max(last, at + 1)
        places: list[tuple[str, tuple[int, ...], int]] = []
        offset = 0
        for read in reads:
            held = self._held[read.variable]
            places.append((held.decl.dtype, held.decl.shape, offset))
            offset += (held.end - held.start) * held.flat.itemsize
        pieces = plan_reads([self._held[read.variable] for read in reads], steps)
        return PushPlan(self.version, steps, pieces, places)

    def apply_plan(
        self, plan: PushPlan, hypers: HyperMap, data: memoryview, cores: Cores = ONE_CORE, total: Total | None = None
    ) -> None:
        """Make the changes of a planned push, on several cores. Its data is used up: see ApplySpan.apply.

        Args:
            plan: It.
            hypers: Evaluated hyper-parameters of every optimizer that it uses.
            data: The push's.
            cores: Share the work.
            total: Contributions to be added to it first, if its changes are all runs.
        """
        for step in plan.steps:
            if isinstance(step, Op):
                self._apply_one(step, hypers)
            else:
                step.apply(step.bound.numbers(hypers[step.key]), data, cores, total)

    def read_plan(self, plan: PushPlan, data: memoryview, buffer: ReplyBuffer | None = None) -> list[Array]:
        """Give the values of a planned push's reads, in flat pieces, each value from a multiple of 8 bytes.

        Args:
            plan: A plan whose changes have just been made.
            data: The push's, as `apply_plan` left it; some of the pieces may be views of it.
            buffer: Where to put the others.

        Raises:
            ResourceExhaustedError: If there is no memory for them now.
        """
        if data.readonly:
            return copies([(view, None) for view in plan.views], buffer)
        copied = iter(copies([(piece.view, None) for piece in plan.copied], buffer) if plan.copied else ())
        values: list[Array] = []
        for piece in plan.reads:
            if piece.left_at is None:
                values.append(next(copied))
            else:
                values.append(np.frombuffer(data, piece.view.dtype, piece.view.size, piece.left_at))
        return values

    def _runs(self, ops: Sequence[Op], data: memoryview) -> list[ApplySpan]:
        """Split dense gradients into runs of neighbours; the split of a known layout is remembered."""
        base = address_of(np.frombuffer(data, np.uint8))
        offsets = [address_of(op.value) - base for op in ops if op.value is not None]
        key = tuple((op.variable, op.optimizer, op.after_increment, at) for op, at in zip(ops, offsets, strict=True))
        plan = self._run_plans.get(key)
        if plan is None:
            plan = plan_runs(ops, offsets, self._held, self.optimizer)
            if len(self._run_plans) >= 64:
                self._run_plans.clear()
            self._run_plans[key] = plan
        return plan

    def _apply_one(self, op: Op, hypers: HyperMap) -> None:
        held = self._held[op.variable]
        if op.kind is OpKind.APPLY:
            decl, rule = self.optimizer(op.optimizer)
            hyper = hypers[op.optimizer, op.after_increment]
            slots = [self._held[name] for name in decl.slots[op.variable]]
            if rule.by_rows:
                rows = _as_rows(held)
                if op.indices is None:
                    every = np.ascontiguousarray(np.broadcast_to(self._operand(op, held), held.decl.shape))
                    every = every.reshape(rows.shape)
                    op = replace(op, value=every, fill=None, source="", indices=np.arange(len(rows)), unique=True)
                apply_rows(rule, rows, tuple(_as_rows(slot) for slot in slots), op, hyper)
                return
            if op.indices is None:
                grad = np.ascontiguousarray(np.broadcast_to(self._operand(op, held), held.decl.shape)).reshape(-1)
                rule.dense(held.flat, tuple(slot.flat for slot in slots), grad, hyper)
                return
            apply_rows(rule, _as_rows(held), tuple(_as_rows(slot) for slot in slots), op, hyper)
            return
        if op.indices is not None:
            scatter_rows(_as_rows(held), op)
            return
        if isinstance(op.fill, Draw):
            op.fill.fill(held.shaped)
            self.version += not held.initialized
            held.initialized = True
            return
        operand = self._operand(op, held)
        if op.kind is OpKind.ASSIGN:
            held.shaped[...] = operand
            self.version += not held.initialized
            held.initialized = True
        elif op.kind is OpKind.ASSIGN_ADD:
            np.add(held.shaped, operand, out=held.shaped, casting="unsafe")
        else:
            np.subtract(held.shaped, operand, out=held.shaped, casting="unsafe")

    def _is_plain_apply(self, op: Op) -> bool:
        """Say whether a change may be one of a run of neighbours: a dense gradient, of a rule that looks at no rows."""
        if op.kind is not OpKind.APPLY or op.indices is not None or op.value is None or not op.value.size:
            return False
        return not self.optimizer(op.optimizer)[1].by_rows

    def _operand(self, op: Op, held: Held) -> Array:
        if op.value is not None:
            return op.value
        if op.source:
            return self._held[op.source].shaped
        # One element, whatever the Variable's size.
        return np.asarray(op.fill).astype(held.flat.dtype)

    # ---- Reads ------------------------------------------------------------------------------

    def bytes_of(self, reads: Sequence[Read]) -> int:
        """Give what `read` takes of a buffer; 0 where it will be refused, as far as that is known before."""
        total = 0
        for read in reads:
            held = self._held.get(read.variable)
            if held is None:
                return 0
            nbytes = held.flat.nbytes
            if read.indices is not None:
                nbytes = read.indices.size * math.prod(held.decl.shape[1:]) * held.flat.itemsize
            total += padded(nbytes)
        return total if total <= self.most_read_bytes else 0

    def _check_reads(self, reads: Sequence[Read], assigned: Collection[str] = ()) -> None:
        nbytes = 0
        for read in reads:
            held = self._held.get(read.variable) or self._find(read.variable, "A read")
            if not held.initialized and read.variable not in assigned:
                raise FailedPreconditionError(f"Attempting to use uninitialized value {read.variable}")
            if read.indices is not None:
                check_indices(read.indices, held.decl)
                nbytes += read.indices.size * (held.flat.nbytes // (held.decl.shape[0] or 1))
            else:
                nbytes += held.flat.nbytes
        if nbytes > self.most_read_bytes:
            raise too_much_read(len(reads), nbytes, self.most_read_bytes)

    def read(self, reads: Sequence[Read], buffer: ReplyBuffer | None = None) -> list[Array]:
        """Give copies of values or rows.

        Args:
            reads: What is wanted.
            buffer: Where to put them; None for anywhere.

        Returns:
            Arrays, one a read, [..] of the Variable's shape or [n, ...] of its rows.

        Raises:
            NotFoundError, FailedPreconditionError, InvalidArgumentError: For an unknown Variable, one
                without a value, or rows out of range.
            ResourceExhaustedError: For more than may be read at a time, or than there is memory for now.
        """
        self._check_reads(reads)
        try:
            return copies([(self._held[read.variable].shaped, read.indices) for read in reads], buffer)
        except MemoryError:
            raise no_memory_to_read(len(reads)) from None

    def scalar(self, name: str) -> float:
        """Give a scalar Variable as a float, for hyper-parameter expressions; raises as `step`."""
        return float(self.step(name)[0])

    def arenas(self) -> list[Array]:
        """Return the arenas that a snapshot copies: those in which some Variable has a value."""
        return list({id(held.arena): held.arena for held in self._held.values() if held.initialized}.values())

    def snapshot(self, copy: Callable[[Sequence[Array]], Sequence[Array]] | None = None) -> dict[str, Array]:
        """Give a copy of every initialized Variable.

        Args:
            copy: Copies the arenas, where the caller has memory for them; the Variables are views of its copies.
        """
        arenas = self.arenas()
        made = copy(arenas) if copy is not None else [arena.copy() for arena in arenas]
        copies = dict(zip(map(id, arenas), made, strict=True))
        return {
            name: copies[id(held.arena)][held.start : held.start + held.flat.size].reshape(held.decl.shape)
            for name, held in self._held.items()
            if held.initialized
        }

    def step(self, name: str) -> Array:
        """Give the array of a step, or of another scalar: of one element.

        Raises:
            NotFoundError: If it is not held here.
            FailedPreconditionError: If it has no value, or is not a scalar.
        """
        held = self._find(name, "A hyper-parameter")
        if not held.initialized or held.flat.size != 1:
            raise FailedPreconditionError(f"Hyper-parameter {name!r} is not an initialized scalar.")
        return held.flat

    def set_steps(self, steps: Mapping[str, int]) -> None:
        """Set the arrays of steps that have been initialized to the sequencer's numbers."""
        for name, value in steps.items():
            held = self._held.get(name)
            if held is not None and held.initialized:
                held.flat[0] = value

    def set_scalars(self, values: Mapping[str, Any]) -> None:
        """Set scalar Variables: an optimizer's scalar state after a push."""
        for name, value in values.items():
            held = self._held[name]
            held.flat[0] = value
            held.initialized = True


def _as_rows(held: Held) -> Array:
    return held.flat.reshape(held.decl.shape[0], math.prod(held.decl.shape[1:]))


def read_now(plan: PushPlan, buffer: ReplyBuffer | None = None) -> list[Array]:
    """Give what a planned push reads as it is now, in flat pieces as `VariableStore.read_plan` does.

    Args:
        plan: A valid plan.
        buffer: Where to put them, one behind the other; None for anywhere.

    Raises:
        ResourceExhaustedError: If there is no memory for them now.
    """
    try:
        if buffer is None or plan.read_bytes < SMALL_BYTES:
            return list(map(np.ndarray.copy, plan.views))
        return copies([(view, None) for view in plan.views], buffer)
    except MemoryError:
        raise no_memory_to_read(len(plan.places)) from None


def apply_rows(rule: Rule, table: Array, slots: tuple[Array, ...], op: Op, hyper: Hypers) -> None:
    """Apply a gradient of some rows.

    Args:
        rule: The update rule.
        table: [rows, width] values; changed.
        slots: The rule's slots, each like `table`; changed.
        op: The change, checked; with indices and a value.
        hyper: The rule's numbers.
    """
    assert op.indices is not None
    assert op.value is not None
    indices, rows = op.indices, op.value.reshape(len(op.indices), table.shape[1])
    if rule.merges_duplicates and not op.unique:
        indices, rows = merge_rows(indices, rows)
    rule.sparse(table, slots, indices, rows, hyper)


def scatter_rows(table: Array, op: Op) -> None:
    """Assign some rows, add to them or subtract from them.

    Where an id comes twice, the last row of it is assigned, and all are added.

    Args:
        table: [rows, width] values; changed.
        op: The change, checked; with indices and a value.
    """
    assert op.indices is not None
    assert op.value is not None
    indices, rows = op.indices, op.value.reshape(len(op.indices), table.shape[1])
    if op.kind is OpKind.ASSIGN:
        table[indices] = rows
        return
    change = np.add if op.kind is OpKind.ASSIGN_ADD else np.subtract
    unique = op.unique
    if not unique and rows.nbytes >= _MERGED_BYTES and rows.dtype.kind in _MERGED_KINDS:
        indices, rows = merge_rows(indices, rows)
        unique = True
    if not unique:
        change.at(table, indices, rows)
        return
    table[indices] = change(np.take(table, indices, axis=0), rows)
