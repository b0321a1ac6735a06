"""Placement: which PS holds which Variable, and which PS is the sequencer. Pure.

Rules, in order: a device that names a PS task is followed; every step, and every scalar Variable that
the sequencer must read to evaluate a hyper-parameter, lives on the sequencer; a slot lives with its
primary; a Variable larger than a PS task's fair share of all bytes is split by rows over all of them; the
rest goes, largest first, to the PS with the fewest bytes. The sequencer is the PS of the first step, PS 0
without one.

Layer: shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from globalstep.cluster.program import Program, ProgramVariable
from globalstep.errors import InvalidArgumentError
from globalstep.wire.declarations import OptimizerDecl, RowRange, VariableDecl, nbytes_of
from globalstep.wire.expressions import names_in

__all__ = ["Declarations", "declared_by", "describe", "plan"]

#: Smaller Variables are not split: each part costs a step some time of its own.
SPLIT_BYTES = 4 << 20
#: Update rules that change each element (or row) on its own, so that parts can be trained apart. LAMB looks at a
#: whole Variable, and a rule from elsewhere may.
SPLITTABLE_KINDS = frozenset(
    {
        "adadelta",
        "adagrad",
        "adagrad_da",
        "adam",
        "adamw",
        "centered_rmsprop",
        "delayed_nesterov",
        "ftrl",
        "gradient_descent",
        "lazy_adam",
        "lion",
        "momentum",
        "moving_average",
        "proximal_adagrad",
        "proximal_gradient_descent",
        "rmsprop",
        "root_adagrad",
        "root_centered_rmsprop",
        "root_rmsprop",
        "row_wise_adagrad",
    }
)


@dataclass(frozen=True, slots=True)
class Declarations:
    """What a program declares to the PS, and where it goes.

    Attributes:
        variables: Every global Variable of known shape, with its shard, or its parts where it is split.
        optimizers: Every optimizer of the program.
        sequencer: Index of the PS that orders all pushes.
        shards: Every Variable's shard, those of unknown shape too; of a split one, its first part's.
    """

    variables: tuple[VariableDecl, ...]
    optimizers: tuple[OptimizerDecl, ...]
    sequencer: int
    shards: dict[str, int]


def declared_by(
    program: Program,
    shards: int,
    sequencer: int | None = None,
    placed: Mapping[str, int] | None = None,
    held: Mapping[str, VariableDecl] | None = None,
) -> Declarations:
    """Give what a program declares to `shards` PS tasks.

    Args:
        program: The whole program.
        shards: Number of PS tasks, at least 1.
        sequencer: The sequencer, where the cluster has begun with one already.
        placed: Variables that the cluster holds already, and where; they stay there.
        held: Declarations of those; slots of a split one are split alike.

    Returns:
        The declarations, the same in every process that has the same program.

    Raises:
        InvalidArgumentError: As `plan`.
    """
    variables, optimizers = program.variables, tuple(program.optimizers)
    steps = {variable.name for variable in variables if variable.is_step}
    scalars = {name for optimizer in optimizers for name in optimizer.scalars}
    named = {name for decl in optimizers for expr in decl.hypers.values() for name in names_in(expr)}
    parts = _splits(program, shards, steps | scalars | named, placed or {}, held or {})
    whole = [variable for variable in variables if variable.name not in parts]
    where, sequencer = plan(whole, shards, steps, scalars | named, sequencer, placed or {})
    where.update((name, ranges[0].shard) for name, ranges in parts.items())
    known = tuple(
        variable.declaration(
            shape,
            where[variable.name],
            program.increments.get(variable.name, frozenset()),
            parts.get(variable.name, ()),
        )
        for variable in variables
        if (shape := variable.known_shape) is not None
    )
    return Declarations(known, optimizers, sequencer, where)


def plan(
    variables: Sequence[ProgramVariable],
    shards: int,
    steps: Set[str] = frozenset(),
    scalars: Set[str] = frozenset(),
    sequencer: int | None = None,
    placed: Mapping[str, int] | None = None,
) -> tuple[dict[str, int], int]:
    """Place Variables.

    Args:
        variables: Those to place, in order of creation.
        shards: Number of PS tasks.
        steps: Names of the steps.
        scalars: Names of other Variables that the sequencer must hold.
        sequencer: The sequencer, where it is decided already.
        placed: Where Variables are already; they stay there.

    Returns:
        Variable name -> shard, and the sequencer.

    Raises:
        InvalidArgumentError: If one asks for a PS task that does not exist.
    """
    placed = placed or {}
    root_of = _Roots(variables)
    asked = {variable.name: _asked_task(variable, shards) for variable in variables}
    if sequencer is None:
        first = next((asked[v.name] for v in variables if v.name in steps), None)
        sequencer = 0 if first is None else first
    where: dict[str, int] = {}
    loads = [0] * shards
    free: list[ProgramVariable] = []
    for variable in variables:
        name, task = variable.name, asked[variable.name]
        if name in placed:
            where[name] = placed[name]
        elif name in steps or name in scalars:
            where[name] = sequencer
        elif not variable.primary and task is not None:
            where[name] = task
        elif not variable.primary:
            free.append(variable)
        if name in where:
            loads[where[name]] += variable.nbytes
    weights = {variable.name: variable.nbytes for variable in free}
    slots = [v for v in variables if v.primary and v.name not in where]
    for slot in slots:
        root = root_of(slot.name)
        if root in weights:
            weights[root] += slot.nbytes
        else:
            loads[where.get(root, sequencer)] += slot.nbytes
    # A stable sort: equal sizes keep the order of creation, so every process places alike.
    for variable in sorted(free, key=lambda v: -weights[v.name]):
        shard = loads.index(min(loads))
        where[variable.name] = shard
        loads[shard] += weights[variable.name]
    for slot in slots:
        where[slot.name] = where.get(root_of(slot.name), sequencer)
    return where, sequencer


def _splits(
    program: Program,
    shards: int,
    scalars: Set[str],
    placed: Mapping[str, int],
    held: Mapping[str, VariableDecl],
) -> dict[str, tuple[RowRange, ...]]:
    """Decide which Variables are split, and how; slots of their Variable's shape are split as it is."""
    variables, root_of = program.variables, _Roots(program.variables)
    by_name = {variable.name: variable for variable in variables}
    whole = _kept_whole(program, by_name, root_of)
    sizes = {variable.name: variable.nbytes for variable in variables}
    weights = dict.fromkeys(sizes, 0)
    for variable in variables:
        root = root_of(variable.name)
        weights[root] = weights.get(root, 0) + sizes[variable.name]
    fair_share = sum(sizes.values()) / shards
    parts: dict[str, tuple[RowRange, ...]] = {}
    for variable in variables:
        name, shape = variable.name, variable.known_shape
        if name in placed:
            if name in held and held[name].parts:
                parts[name] = held[name].parts
            continue
        root = root_of(name)
        if root != name:
            if root in parts and root in by_name and _has_its_rows(variable, by_name[root]):
                parts[name] = parts[root]
            continue
        if (
            shards > 1
            and sizes[name] >= SPLIT_BYTES
            and weights[name] > fair_share
            and name not in scalars | whole
            and shape
            and shape[0] >= shards
            and _asked_task(variable, shards) is None
        ):
            parts[name] = _even_rows(shape[0], shards)
    return parts


def _kept_whole(program: Program, by_name: Mapping[str, ProgramVariable], root_of: _Roots) -> set[str]:
    """Give the names of Variables that parts could not stand for: their rule, or a copy of them, needs all of it."""
    whole: set[str] = set()
    for optimizer in program.optimizers:
        for name, slots in optimizer.slots.items():
            if name not in by_name:
                continue
            alike = all(_has_its_rows(by_name[slot], by_name[name]) for slot in slots if slot in by_name)
            if optimizer.kind not in SPLITTABLE_KINDS or not alike:
                whole.add(root_of(name))
    for pair in program.copied:
        source, target = map(root_of, pair)
        if source != target:
            whole |= {source, target}
    return whole


def _has_its_rows(slot: ProgramVariable, variable: ProgramVariable) -> bool:
    """Say whether a slot has a row for each of its Variable: as wide, or of one element."""
    found, shape = slot.shape, variable.shape
    return found == shape or (shape is not None and len(shape) > 1 and found == (shape[0], 1))


class _Roots:
    """Gives the Variable that a slot, or a slot of one, belongs to in the end."""

    def __init__(self, variables: Sequence[ProgramVariable]) -> None:
        self._primary = {variable.name: variable.primary for variable in variables}

    def __call__(self, name: str) -> str:
        while primary := self._primary.get(name, ""):
            name = primary
        return name


def _even_rows(rows: int, shards: int) -> tuple[RowRange, ...]:
    ends = [rows * (shard + 1) // shards for shard in range(shards)]
    return tuple(RowRange(shard, first, end) for shard, (first, end) in enumerate(zip([0, *ends], ends, strict=False)))


def describe(planned: Declarations, labels: Sequence[str]) -> str:
    """Say what goes where, for people.

    Args:
        planned: The declarations.
        labels: What to call the PS tasks, in order.

    Returns:
        A line for each PS task, and one for each Variable that is split.
    """
    counts, loads = [0] * len(labels), [0] * len(labels)
    split: list[str] = []
    for decl in planned.variables:
        ranges = decl.parts or (RowRange(decl.shard, 0, 1),)
        for part in ranges:
            counts[part.shard] += 1
            rows = decl.shape[0] if decl.parts else 1
            loads[part.shard] += nbytes_of(decl) * (part.end - part.first) // rows
        if decl.parts and not decl.primary:
            split.append(f"{decl.name} is split by rows: " + ", ".join(f"{p.first} to {p.end - 1}" for p in ranges))
    lines = [
        f"{label}: {count} Variables, {load / 1e6:,.1f} MB" + (", orders all pushes" if at == planned.sequencer else "")
        for at, (label, count, load) in enumerate(zip(labels, counts, loads, strict=True))
    ]
    return "\n".join(["Placement:", *(f"  {line}" for line in lines + split)])


def _asked_task(variable: ProgramVariable, shards: int) -> int | None:
    """The PS task that the program asks for."""
    if variable.task is not None and variable.task >= shards:
        raise InvalidArgumentError(
            f"Variable {variable.name!r} is placed on {variable.device!r}, but the cluster has "
            f"{shards} PS task(s): 0 to {shards - 1}."
        )
    return variable.task
