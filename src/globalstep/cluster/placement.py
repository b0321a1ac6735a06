"""Placement: which PS holds which Variable, and which PS is the sequencer. Pure.

What a cluster holds stays where it is. For the rest, `spread_above` and `split_above` being those of the run's policy:

1. The sequencer of a new run is PS 0. It holds every step, and every scalar Variable that it must read to evaluate a
   hyper-parameter.
2. A slot lives with its Variable.
3. A table (only rows of it have gradients) of `split_above` bytes or more that is larger than a PS task's fair share of
   all bytes is split by rows over all PS tasks. One that is not larger goes to the PS with the fewest bytes.
4. All other Variables are dense, small tables too. Do they have fewer than `spread_above` bytes together, without their
   slots, as a push and what it reads back have? Then all are on the sequencer: a push of them has one participant. Else
   those that are larger than a fair share are split as tables are, and the others go, largest first, to the PS with the
   fewest bytes.

A device that a program names decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from globalstep.cluster.program import Program, ProgramVariable
from globalstep.cluster.run_policy import RunPolicy
from globalstep.rules import BUILT_IN
from globalstep.wire.declarations import OptimizerDecl, RowRange, VariableDecl
from globalstep.wire.expressions import names_in

#: Update rules that change each element (or row) on its own, so that parts can be trained apart. LAMB looks at a
#: whole Variable, slots of the averages without bias count pushes, and a rule from elsewhere may do what it likes.
SPLITTABLE_KINDS = frozenset(BUILT_IN) - {"lamb", "zero_debias_moving_average"}


@dataclass(frozen=True, slots=True)
class Declarations:
    """A program's declarations to the PS, with their placement.

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
    policy: RunPolicy,
    sequencer: int = 0,
    placed: Mapping[str, int] | None = None,
    held: Mapping[str, VariableDecl] | None = None,
) -> Declarations:
    """Give what a program declares to `shards` PS tasks.

    Args:
        program: The whole program.
        shards: Number of PS tasks, at least 1.
        policy: The run's; says from which sizes on Variables are spread and split.
        sequencer: The sequencer; another than PS 0 where the cluster has begun with one.
        placed: Variables that the cluster holds already, and where; they stay there.
        held: Declarations of those; slots of a split one are split alike.

    Returns:
        The declarations, the same in every process that has the same program.
    """
    variables, optimizers = program.variables, tuple(program.optimizers)
    placed, held, by_name = placed or {}, held or {}, {variable.name: variable for variable in program.variables}

    def root_of(name: str) -> str:
        """Give the Variable that a slot, or a slot of one, belongs to in the end."""
        while name in by_name and (primary := by_name[name].primary):
            name = primary
        return name

    weights = dict.fromkeys((root_of(variable.name) for variable in variables), 0)
    for variable in variables:
        weights[root_of(variable.name)] += variable.nbytes
    tables = {item.name for item in variables if item.is_table and item.nbytes >= policy.split_above}
    dense = sum(item.nbytes for item in variables if not item.primary and item.name not in tables)
    # Roots that may be split, or lie on any PS task.
    free = set(weights if dense >= policy.spread_above else tables)
    free -= {variable.name for variable in variables if variable.is_step}
    free -= {name for optimizer in optimizers for name in optimizer.scalars}
    free -= {name for decl in optimizers for expr in decl.hypers.values() for name in names_in(expr)}
    fair_share = sum(weights.values()) / shards
    large = {name for name in free if weights[name] > fair_share} - _kept_whole(program, root_of)

    # The large ones are split, if they have at least so many bytes; slots of their Variable's shape as it is.
    parts: dict[str, tuple[RowRange, ...]] = {}
    for variable in variables:
        name, shape, root = variable.name, variable.known_shape, root_of(variable.name)
        if name in placed:
            if name in held and held[name].parts:
                parts[name] = held[name].parts
        elif root != name:
            if root in parts and root in by_name and _has_its_rows(variable, by_name[root]):
                parts[name] = parts[root]
        elif shards > 1 and name in large and variable.nbytes >= policy.split_above and shape and shape[0] >= shards:
            ends = [shape[0] * (shard + 1) // shards for shard in range(shards)]
            parts[name] = tuple(map(RowRange, range(shards), [0, *ends], ends))

    # Of the others the free ones go where the fewest bytes are, slots with them, all the rest to the sequencer.
    whole = [variable for variable in variables if variable.name not in parts]
    where: dict[str, int] = {}
    loads, weights = [0] * shards, dict[str, int]()
    for variable in whole:
        name, root = variable.name, root_of(variable.name)
        if name in placed or root not in free or root in placed:
            where[name] = placed.get(name, placed.get(root, sequencer))
            loads[where[name]] += variable.nbytes
        else:
            weights[root] = weights.get(root, 0) + variable.nbytes
    # A stable sort: equal sizes keep the order of creation, so every process places alike.
    for root in sorted(weights, key=lambda root: -weights[root]):
        where[root] = loads.index(min(loads))
        loads[where[root]] += weights[root]
    where |= {item.name: where[root_of(item.name)] for item in whole if item.name not in where}
    where.update((name, ranges[0].shard) for name, ranges in parts.items())
    declarations = tuple(
        variable.declaration(
            shape,
            where[variable.name],
            program.increments.get(variable.name, frozenset()),
            parts.get(variable.name, ()),
        )
        for variable in variables
        if (shape := variable.known_shape) is not None
    )
    return Declarations(declarations, optimizers, sequencer, where)


def _kept_whole(program: Program, root_of: Callable[[str], str]) -> set[str]:
    """Give the names of Variables that parts could not stand for: their rule, or a copy of them, needs all of it."""
    by_name = {variable.name: variable for variable in program.variables}
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
    own, shape = slot.shape, variable.shape
    return own == shape or (shape is not None and len(shape) > 1 and own == (shape[0], 1))
