"""Merging of mutations into one push although one must follow the other. Pure.

Within a push, hyper-parameters are evaluated first, then the ops are applied in order, then steps move on;
a sparse or dense operand was computed before all of it. `after_increment` parameters see the moved steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.mutations import Mutation, OptimizerSpec
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.expressions import names_in

#: For each node, the mutations that it comes right after.
Follows = Mapping[Node, frozenset[Mutation]]


def may_join(
    mutation: Mutation, push: Sequence[Mutation], follows: Follows, wanted: Set[Mutation], fed: Set[Node]
) -> bool:
    """Say whether pushing a mutation together with others is the same as pushing it after them.

    Args:
        mutation: The one to add.
        push: Those that are together already.
        follows: What each node comes right after; `mutation` itself too.
        wanted: Mutations whose value is wanted: the Variable's, right after the push.
        fed: Nodes whose value is fed.
    """
    for other in push:
        if mutation.guards != other.guards:
            return False  # in branches that are not taken together
        if mutation.attrs.get("eager") or other.attrs.get("eager"):
            return False  # GATE_NONE: to be pushed by itself
        if mutation.attrs.get("contribution") != other.attrs.get("contribution"):
            return False  # what is done when a step is made of several contributions is done by nothing else
        if _share_what_a_push_does_once(mutation, other):
            return False
        if _comes_after(mutation, other, follows) and _sees_the_difference(mutation, other, wanted, fed):
            return False
    return True


def specs_of(mutation: Mutation) -> tuple[OptimizerSpec, ...]:
    """Give the optimizers that a mutation uses, each once."""
    applied = [part.optimizer for part in mutation.parts if part.optimizer is not None]
    return tuple(dict.fromkeys((*mutation.uses, *applied)))


def _share_what_a_push_does_once(mutation: Mutation, other: Mutation) -> bool:
    """Whether both move the same step, finish the same optimizer, or want its parameters at other steps."""
    if _steps(mutation) & _steps(other):
        return True
    shared = set(specs_of(mutation)) & set(specs_of(other))
    if shared & set(mutation.uses) & set(other.uses):
        return True
    return bool(shared) and mutation.after_increment != other.after_increment


def _sees_the_difference(mutation: Mutation, other: Mutation, wanted: Set[Mutation], fed: Set[Node]) -> bool:
    moved, changed = _steps(other), {part.variable for part in other.changes}
    if any(isinstance(source, Variable) and source not in fed for source in mutation.inputs):
        return True
    if any(part.variable in moved or part.source in moved for part in mutation.parts):
        return True
    if other.after_increment and mutation.moves:
        return True
    if other in wanted and other.value_of in mutation.variables:
        return True
    stale = changed if mutation.after_increment else changed | moved
    return bool(_hyper_names(mutation) & {variable.op_name for variable in stale})


def _steps(mutation: Mutation) -> set[Variable]:
    return {move.step for move in mutation.moves}


def _hyper_names(mutation: Mutation) -> set[str]:
    """The steps and Variables that its hyper-parameters depend on, scalar state among them."""
    names: set[str] = set()
    for spec in specs_of(mutation):
        declaration = spec.declaration()
        names.update(declaration.scalars)
        for expr in declaration.hypers.values():
            names.update(names_in(expr))
    return names


def _comes_after(mutation: Mutation, other: Mutation, follows: Follows) -> bool:
    seen: set[Mutation] = set()
    waiting = [mutation]
    while waiting:
        node = waiting.pop()
        for source in (*node.inputs, *node.control_inputs):
            before = follows.get(source, frozenset())
            if other in before:
                return True
            waiting.extend(before - seen)
            seen |= before
    return False
