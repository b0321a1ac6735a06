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
from dataclasses import dataclass, replace

from globalstep.errors import InvalidArgumentError, UnimplementedError
from globalstep.tf1.graph.device import DeviceSpec
from globalstep.tf1.graph.graph import Graph, GraphKeys
from globalstep.tf1.graph.mutations import Mutation, OptimizerSpec
from globalstep.tf1.variables.variables import Variable, variables_of
from globalstep.wire.declarations import OptimizerDecl, RowRange, VariableDecl, nbytes_of
from globalstep.wire.expressions import names_in

__all__ = ["Declarations", "declarations", "describe", "optimizers_of", "plan", "steps_of"]

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
    """What a graph declares to the PS.

    Attributes:
        variables: Every global Variable of known shape, with its shard, or its parts where it is split.
        optimizers: Every optimizer that a mutation uses.
        sequencer: Index of the PS that orders all pushes.
        shards: Every Variable's shard, those of unknown shape too; of a split one, its first part's.
    """

    variables: tuple[VariableDecl, ...]
    optimizers: tuple[OptimizerDecl, ...]
    sequencer: int
    shards: dict[str, int]


def declarations(
    graph: Graph,
    shards: int,
    sequencer: int | None = None,
    placed: Mapping[str, int] | None = None,
    held: Mapping[str, VariableDecl] | None = None,
) -> Declarations:
    """Give what a graph declares to `shards` PS tasks.

    Args:
        graph: The whole graph, train ops included.
        shards: Number of PS tasks, at least 1.
        sequencer: The sequencer, where the cluster has begun with one already.
        placed: Variables that the cluster holds already, and where; they stay there.
        held: Declarations of those; slots of a split one are split alike.

    Returns:
        The declarations, the same in every process that builds the same graph.

    Raises:
        InvalidArgumentError: As `plan`.
    """
    variables = [variable for variable in variables_of(graph) if not variable.is_local]
    optimizers = tuple(spec.declaration() for spec in optimizers_of(graph))
    steps = {step.op_name for step in steps_of(graph)}
    amounts = _amounts_of(graph)
    scalars = {name for optimizer in optimizers for name in optimizer.scalars}
    named = {name for decl in optimizers for expr in decl.hypers.values() for name in names_in(expr)}
    parts = _splits(graph, variables, shards, steps | scalars | named, optimizers, placed or {}, held or {})
    whole = [variable for variable in variables if variable.op_name not in parts]
    where, sequencer = plan(whole, shards, steps, scalars | named, sequencer, placed or {})
    where.update((name, ranges[0].shard) for name, ranges in parts.items())
    known = tuple(
        replace(
            variable.declaration(shard=where[variable.op_name]),
            is_step=variable.op_name in steps,
            increments=tuple(sorted(amounts.get(variable.op_name, ()))),
            parts=parts.get(variable.op_name, ()),
        )
        for variable in variables
        if variable.shape.is_fully_defined()
    )
    return Declarations(known, optimizers, sequencer, where)


def plan(
    variables: Sequence[Variable],
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
        InvalidArgumentError: If a device names a PS task that does not exist.
    """
    placed = placed or {}
    asked = {variable.op_name: _asked_task(variable, shards) for variable in variables}
    if sequencer is None:
        first = next((asked[v.op_name] for v in variables if v.op_name in steps), None)
        sequencer = 0 if first is None else first
    where: dict[str, int] = {}
    loads = [0] * shards
    free: list[Variable] = []
    for variable in variables:
        name, task = variable.op_name, asked[variable.op_name]
        if name in placed:
            where[name] = placed[name]
        elif name in steps or name in scalars:
            where[name] = sequencer
        elif variable.primary is None and task is not None:
            where[name] = task
        elif variable.primary is None:
            free.append(variable)
        if name in where:
            loads[where[name]] += _nbytes(variable)
    weights = {variable.op_name: _nbytes(variable) for variable in free}
    slots = [v for v in variables if v.primary is not None and v.op_name not in where]
    for slot in slots:
        root = _root(slot).op_name
        if root in weights:
            weights[root] += _nbytes(slot)
        else:
            loads[where.get(root, sequencer)] += _nbytes(slot)
    # A stable sort: equal sizes keep the order of creation, so every process places alike.
    for variable in sorted(free, key=lambda v: -weights[v.op_name]):
        shard = loads.index(min(loads))
        where[variable.op_name] = shard
        loads[shard] += weights[variable.op_name]
    for slot in slots:
        where[slot.op_name] = where.get(_root(slot).op_name, sequencer)
    return where, sequencer


def _splits(
    graph: Graph,
    variables: Sequence[Variable],
    shards: int,
    scalars: Set[str],
    optimizers: Sequence[OptimizerDecl],
    placed: Mapping[str, int],
    held: Mapping[str, VariableDecl],
) -> dict[str, tuple[RowRange, ...]]:
    """Decide which Variables are split, and how; slots of their Variable's shape are split as it is."""
    whole = _kept_whole(graph, variables, optimizers)
    sizes = {variable.op_name: _nbytes(variable) for variable in variables}
    weights = dict.fromkeys(sizes, 0)
    for variable in variables:
        weights[_root(variable).op_name] = weights.get(_root(variable).op_name, 0) + sizes[variable.op_name]
    fair_share = sum(sizes.values()) / shards
    parts: dict[str, tuple[RowRange, ...]] = {}
    for variable in variables:
        name = variable.op_name
        if name in placed:
            if name in held and held[name].parts:
                parts[name] = held[name].parts
            continue
        root = _root(variable)
        if root is not variable:
            if root.op_name in parts and _has_its_rows(variable, root):
                parts[name] = parts[root.op_name]
            continue
        if (
            shards > 1
            and sizes[name] >= SPLIT_BYTES
            and weights[name] > fair_share
            and name not in scalars | whole
            and variable.declaration().shape[0] >= shards
            and _asked_task(variable, shards) is None
        ):
            parts[name] = _even_rows(variable.declaration().shape[0], shards)
    return parts


def _kept_whole(graph: Graph, variables: Sequence[Variable], optimizers: Sequence[OptimizerDecl]) -> set[str]:
    """Give the names of Variables that parts could not stand for: their rule, or a copy of them, needs all of it."""
    by_name = {variable.op_name: variable for variable in variables}
    whole: set[str] = set()
    for optimizer in optimizers:
        for name, slots in optimizer.slots.items():
            if name not in by_name:
                continue
            alike = all(_has_its_rows(by_name[slot], by_name[name]) for slot in slots if slot in by_name)
            if optimizer.kind not in SPLITTABLE_KINDS or not alike:
                whole.add(_root(by_name[name]).op_name)
    for node in graph.nodes:
        for part in node.parts if isinstance(node, Mutation) else ():
            if part.source is not None and _root(part.source) is not _root(part.variable):
                whole |= {_root(part.source).op_name, _root(part.variable).op_name}
    return whole


def _has_its_rows(slot: Variable, variable: Variable) -> bool:
    """Say whether a slot has a row for each of its Variable: as wide, or of one element."""
    found, shape = slot.shape.as_list(), variable.shape.as_list()
    return found == shape or (len(shape) > 1 and found == [shape[0], 1])


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


def steps_of(graph: Graph) -> list[Variable]:
    """Give the Variables that count as steps: marked as one, in GLOBAL_STEP, or incremented by a push."""
    found = [node for node in graph.get_collection(GraphKeys.GLOBAL_STEP) if isinstance(node, Variable)]
    found += [variable for variable in variables_of(graph) if variable.is_step]
    found += [step for node in graph.nodes if isinstance(node, Mutation) for step, _ in node.increments]
    return [step for step in dict.fromkeys(found) if not step.is_local]


def _amounts_of(graph: Graph) -> dict[str, set[int]]:
    """Give by how much the mutations of a graph move its steps on, where that is not by 1."""
    found: dict[str, set[int]] = {}
    for node in graph.nodes:
        if isinstance(node, Mutation):
            for step, by in node.increments:
                if by != 1:
                    found.setdefault(step.op_name, set()).add(by)
    return found


def optimizers_of(graph: Graph) -> list[OptimizerSpec]:
    """Give the optimizers of what is on the PS that a graph's mutations use, each once, in order of creation."""
    used: dict[str, OptimizerSpec] = {}
    for node in graph.nodes:
        if isinstance(node, Mutation):
            for spec in (*node.uses, *(part.optimizer for part in node.parts)):
                if spec is not None and not spec.is_local:
                    used.setdefault(spec.name, spec)
    return list(used.values())


def _root(variable: Variable) -> Variable:
    while variable.primary is not None:
        variable = variable.primary
    return variable


def _nbytes(variable: Variable) -> int:
    if variable.dtype.name == "string":
        raise UnimplementedError(
            f"Variable {variable.op_name!r} holds strings, and a PS task holds numbers. Keep it in the session, with "
            "collections=[gs.GraphKeys.LOCAL_VARIABLES], or use a constant or a lookup table."
        )
    return nbytes_of(variable.declaration()) if variable.shape.is_fully_defined() else 0


def _asked_task(variable: Variable, shards: int) -> int | None:
    """The PS task that the device names; a device of another job leaves it open."""
    if not variable.device:
        return None
    device = DeviceSpec.from_string(variable.device)
    if device.job != "ps" or device.task is None:
        return None
    if device.task >= shards:
        raise InvalidArgumentError(
            f"Variable {variable.op_name!r} is placed on {variable.device!r}, but the cluster has "
            f"{shards} PS task(s): 0 to {shards - 1}."
        )
    return device.task
