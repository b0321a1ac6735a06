"""Checks of changes and reads, done before anything is changed.

Layer: ps. Threads: functions are pure.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import AlreadyExistsError, InvalidArgumentError, ResourceExhaustedError
from globalstep.ps.budget import RETRY_SECS
from globalstep.ps.store.arena import Held
from globalstep.runtime.machine_memory import available_bytes
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, VariableDecl
from globalstep.wire.draws import Draw
from globalstep.wire.names import check_name, shown

if TYPE_CHECKING:
    from globalstep.ps.store.store import VariableStore

Array = npt.NDArray[Any]

#: Variables of one shard, slots included, and steps of a run: every outcome of a push carries all steps.
LIMIT_VARIABLES = 1_000_000
LIMIT_STEPS = 64
#: What a Variable takes besides its values: its declaration, its place, its name in some tables.
_BESIDES_BYTES = 1024


def check_variables(declared: Iterable[VariableDecl], held: Mapping[str, VariableDecl]) -> dict[str, VariableDecl]:
    """Check declarations of Variables against each other and against those that are held.

    Args:
        declared: The declarations.
        held: Declared before, by name.

    Returns:
        Those that are new, by name, in order.

    Raises:
        AlreadyExistsError: If one is declared otherwise already.
        InvalidArgumentError: If one could not be, whatever else there is.
        ResourceExhaustedError: If there are too many.
    """
    fresh: dict[str, VariableDecl] = {}
    for decl in declared:
        earlier = held.get(decl.name) or fresh.get(decl.name)
        if earlier is None:
            check_name(decl.name, "a Variable")
            for name in filter(None, (decl.primary, decl.optimizer, decl.slot, decl.whole)):
                check_name(name, f"what Variable {decl.name!r} belongs to")
            if len(decl.increments) > LIMIT_STEPS or (decl.increments and not decl.is_step):
                raise InvalidArgumentError(
                    f"Variable {decl.name!r} is declared with {len(decl.increments)} increments; a step may have up to "
                    f"{LIMIT_STEPS}, other Variables none."
                )
            if decl.is_step and (decl.shape or decl.dtype not in ("int32", "int64")):
                raise InvalidArgumentError(
                    f"Step {decl.name!r} must be an integer scalar; it is {decl.dtype} {list(decl.shape)}."
                )
            fresh[decl.name] = decl
        elif (earlier.dtype, earlier.shape) != (decl.dtype, decl.shape):
            raise AlreadyExistsError(
                f"Variable {decl.name!r} is declared as {decl.dtype} {list(decl.shape)}, but this run "
                f"has it as {earlier.dtype} {list(earlier.shape)}; all programs of a run build the "
                "same Variables."
            )
        elif decl.is_step and not earlier.is_step:
            raise AlreadyExistsError(
                f"Variable {decl.name!r} is declared as a step, but in this run it is not a step; all programs "
                "of a run build the same Variables."
            )
    if len(fresh) + len(held) > LIMIT_VARIABLES:
        raise ResourceExhaustedError(
            f"{len(fresh)} Variables are declared beside {len(held)}; {LIMIT_VARIABLES} are the most on one PS task."
        )
    new_steps = sum(decl.is_step for decl in fresh.values())
    if new_steps and new_steps + sum(decl.is_step for decl in held.values()) > LIMIT_STEPS:
        raise ResourceExhaustedError(f"{new_steps} steps are declared; {LIMIT_STEPS} are the most in a run.")
    return fresh


def check_step_count(steps: int) -> None:
    """Refuse a declaration of more steps than a run may have, before any of it is read.

    Args:
        steps: How many it is of.

    Raises:
        ResourceExhaustedError: If they are too many.
    """
    if steps > LIMIT_STEPS:
        raise ResourceExhaustedError(f"{steps} steps are declared; {LIMIT_STEPS} are the most in a run.")


def check_memory(fresh: Collection[VariableDecl], held: Iterable[VariableDecl]) -> None:
    """Refuse Variables that this machine could not hold, before any memory is taken for them.

    Args:
        fresh: Newly declared.
        held: Declared before.

    Raises:
        ResourceExhaustedError: If all together have more bytes than the machine has memory, or those that are new
            more than is free.
    """
    new, free = sum(map(_nbytes, fresh)), available_bytes()
    if new > free:
        largest = max(fresh, key=_nbytes)
        raise ResourceExhaustedError(
            f"{len(fresh)} Variables of {new} bytes are declared, and {free} bytes of memory are free; the largest "
            f"is {largest.name!r}, {largest.dtype} {list(largest.shape)}. Use more PS tasks."
        )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = sum(_nbytes(decl) for decl in held)
    for decl in fresh:
        total += _nbytes(decl)
        if total > memory:
            raise ResourceExhaustedError(
                f"Variable {decl.name!r}, {decl.dtype} {list(decl.shape)}, has {_nbytes(decl)} bytes; with those "
                f"before it the shard would hold {total}, and this machine has {memory} bytes of memory. "
                "Use more PS tasks."
            )


def _nbytes(decl: VariableDecl) -> int:
    names = len(decl.name) + len(decl.primary) + len(decl.optimizer) + len(decl.slot) + len(decl.whole)
    return math.prod(decl.shape) * np.dtype(decl.dtype).itemsize + names + _BESIDES_BYTES


def check_operand(op: Op, held: Held, source: Held | None) -> None:
    """Refuse a change whose operand does not fit its Variable.

    Args:
        op: The change.
        held: Its Variable.
        source: The Variable that is its operand, if one is.

    Raises:
        InvalidArgumentError: For a wrong shape or dtype, a row out of range, or no operand.
    """
    decl = held.decl
    if op.kind in (OpKind.ASSIGN_ADD, OpKind.ASSIGN_SUB) and held.flat.dtype.kind == "b":
        raise InvalidArgumentError(
            f"Variable {op.variable!r} is bool, to which nothing can be added and from which nothing can be "
            "subtracted. Assign it."
        )
    if source is not None:
        if op.indices is not None:
            raise InvalidArgumentError(
                f"A change of some rows of {op.variable!r} names Variable {op.source!r} as its operand; it must bring "
                "the rows."
            )
        if (source.decl.dtype, source.decl.shape) != (decl.dtype, decl.shape):
            raise InvalidArgumentError(
                f"Variable {op.variable!r} is {decl.dtype} {list(decl.shape)}; its source {op.source!r} is "
                f"{source.decl.dtype} {list(source.decl.shape)}."
            )
        return
    if op.value is None:
        if op.fill is None or op.indices is not None:
            raise InvalidArgumentError(f"A change of {op.variable!r} has no operand.")
        if isinstance(op.fill, Draw):
            if op.kind is not OpKind.ASSIGN:
                raise InvalidArgumentError(f"Random values are assigned to {op.variable!r}, not added or applied.")
            op.fill.check(op.variable, decl.dtype, decl.shape)
        return
    if op.value.dtype != held.flat.dtype:
        raise InvalidArgumentError(
            f"{_called(op)} for Variable {op.variable!r} has dtype {op.value.dtype.name}; the Variable has "
            f"dtype {decl.dtype}. Cast it on the worker."
        )
    if op.indices is not None and op.indices.ndim != 1:
        raise InvalidArgumentError(f"Row ids of Variable {op.variable!r} must be int64 [n], not {op.indices.shape}.")
    shape = decl.shape if op.indices is None else (len(op.indices), *decl.shape[1:])
    if op.value.shape != shape:
        raise InvalidArgumentError(
            f"{_called(op)} for Variable {op.variable!r} has shape {list(op.value.shape)}; the Variable has "
            f"shape {list(decl.shape)}" + ("." if op.indices is None else f", so {list(shape)} is needed.")
        )
    if op.indices is not None:
        check_indices(op.indices, decl)


def too_much_read(reads: int, nbytes: int, most: int) -> ResourceExhaustedError:
    """Give the error for reads of more bytes than one message may read."""
    return ResourceExhaustedError(
        f"{reads} reads of {nbytes:,} bytes in all are over this task's limit of {most:,}; raise --max-message-bytes, "
        "or read less at a time."
    )


def no_memory_to_hold(fresh: Iterable[VariableDecl]) -> ResourceExhaustedError:
    """Give the error for Variables that the system gives this process no memory for."""
    largest = max(fresh, key=_nbytes)
    return ResourceExhaustedError(
        f"This PS task's process is given no memory for the Variables that are declared; the largest is "
        f"{largest.name!r}, {largest.dtype} {list(largest.shape)}. Use more PS tasks."
    )


def no_memory_to_read(reads: int) -> ResourceExhaustedError:
    """Give the error for reads that this machine has no memory for now."""
    return ResourceExhaustedError(
        f"{reads} reads: this PS task's machine has no memory for a copy of the values now. Give it more, or read "
        "less at a time.",
        retry_secs=RETRY_SECS,
    )


def _called(op: Op) -> str:
    return "The gradient" if op.kind is OpKind.APPLY else "The value"


def check_indices(indices: Array, decl: VariableDecl) -> None:
    """Refuse row ids that are not rows of a Variable.

    Raises:
        InvalidArgumentError: For a wrong dtype or rank, an id out of range, or a scalar Variable.
    """
    if not decl.shape:
        raise InvalidArgumentError(f"Variable {decl.name!r} is a scalar and has no rows.")
    if indices.dtype != np.int64 or indices.ndim != 1:
        raise InvalidArgumentError(f"Row ids of Variable {decl.name!r} must be int64 [n], not {indices.dtype}.")
    # A negative one is a large one without its sign.
    if indices.size and indices.view(np.uint64).max() >= decl.shape[0]:
        low, high = int(indices.min()), int(indices.max())
        wrong = low if low < 0 else high
        # The first part of a split table is asked for the rows that are nobody's: the program knows the whole.
        name, rows = (decl.whole, decl.whole_rows) if decl.whole else (decl.name, decl.shape[0])
        raise InvalidArgumentError(
            f"Row id {wrong} is not in [0, {rows}) for Variable {name!r} of shape {[rows, *decl.shape[1:]]}."
        )


@cache
def _range_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Give the least and the greatest number of an integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def check_step(name: str, held: Array, before: int, value: int) -> None:
    """Refuse a value that a step cannot have, and a move that is too far to be written down.

    Args:
        name: The step.
        held: Its array, of one element.
        before: What it is.
        value: What it would be.

    Raises:
        InvalidArgumentError: If that is beyond its dtype, or farther away than an int64 tells.
    """
    least, most = _range_of(held.dtype)
    if not least <= value <= most:
        raise InvalidArgumentError(f"The push would move step {name!r} from {held[0]} to {value}, beyond {held.dtype}.")
    if not -(1 << 63) <= value - before < 1 << 63:
        raise InvalidArgumentError(
            f"The push would move step {name!r} from {before} to {value}, by {value - before}: that is beyond int64. "
            "Assign it instead."
        )


def kernels(
    variables: Sequence[VariableDecl], optimizers: Sequence[OptimizerDecl], store: VariableStore
) -> set[tuple[str, str]]:
    """Give the kinds of rules, with dtypes, that a declaration will have work to do; to be prepared before."""
    dtypes = {decl.name: decl.dtype for decl in variables}
    kinds: set[tuple[str, str]] = set()
    for decl in variables:
        kinds.update((store.optimizer(name)[0].kind, decl.dtype) for name in store.trained_by(decl.name))
    for optimizer in optimizers:
        for name in optimizer.slots:
            held = store.declaration(name)
            dtype = dtypes.get(name) if held is None else held.dtype
            if dtype is not None:
                kinds.add((optimizer.kind, dtype))
    return kinds


def undeclared(increments: Iterable[Increment], uses: Iterable[OptimizerUse], store: VariableStore) -> str:
    """Say what of a push's decision the chief's program has not declared; "" where all is.

    Args:
        increments: By how much steps are to move on: by 1, or as declared.
        uses: Optimizers, with numbers that the worker computed: not in the place of declared expressions.
        store: Of the sequencer.
    """
    for item in increments:
        step = store.declaration(item.step)
        if item.by != 1 and (step is None or item.by not in step.increments):
            return f"move step {shown(item.step)} on by {item.by}, which is not declared"
    for use in uses:
        names = use.overrides.keys() & store.optimizer(use.optimizer)[0].hypers if use.overrides else ()
        if names:
            return f"give {sorted(names)} of optimizer {shown(use.optimizer)}, for which an expression is declared"
    return ""
