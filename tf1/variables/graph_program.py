"""A graph as a program: the Variables, optimizers and steps that it declares to the PS tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from globalstep.cluster.placement import Declarations, declared_by
from globalstep.cluster.program import Program, ProgramVariable
from globalstep.cluster.run_policy import RunPolicy
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.graph.mutations import Mutation, OptimizerSpec
from globalstep.tf1.variables.variables import Variable, variables_of
from globalstep.wire.declarations import OpKind, VariableDecl


def declarations(
    graph: Graph,
    shards: int,
    policy: RunPolicy,
    sequencer: int = 0,
    placed: Mapping[str, int] | None = None,
    held: Mapping[str, VariableDecl] | None = None,
) -> Declarations:
    """Give what a graph declares to `shards` PS tasks; see placement.declared_by."""
    return declared_by(as_program(graph), shards, policy, sequencer, placed, held)


def as_program(graph: Graph) -> Program:
    """Give what a graph, train ops included, declares."""
    steps = set(steps_of(graph))
    parts = [part for node in graph.nodes if isinstance(node, Mutation) for part in node.parts]
    tables = {part.variable for part in parts if part.kind is OpKind.APPLY and part.indices is not None}
    variables = [
        replace(program_variable(variable), is_step=variable in steps, is_table=variable in tables)
        for variable in variables_of(graph)
        if not variable.is_local
    ]
    copied = [(part.source.op_name, part.variable.op_name) for part in parts if part.source is not None]
    return Program(variables, [spec.declaration() for spec in optimizers_of(graph)], _amounts_of(graph), copied)


def program_variable(variable: Variable) -> ProgramVariable:
    """Give a Variable of a graph as programs declare it."""
    return ProgramVariable(
        name=variable.op_name,
        dtype=variable.dtype.name,
        shape=None if variable.shape.ndims is None else tuple(variable.shape.as_list()),
        trainable=variable.trainable,
        primary="" if variable.primary is None else variable.primary.op_name,
        optimizer=variable.optimizer_name,
        slot=variable.slot_name,
        is_step=variable.is_step,
    )


def steps_of(graph: Graph) -> list[Variable]:
    """Give the Variables that count as steps, in order of creation."""
    return [variable for variable in variables_of(graph) if variable.counts_as_step]


def _amounts_of(graph: Graph) -> dict[str, set[int]]:
    """Give by how much the mutations of a graph move its steps on, where that is known and not by 1."""
    amounts: dict[str, set[int]] = {}
    for node in graph.nodes:
        if isinstance(node, Mutation):
            for step, by, times in node.moves:
                if by != 1 and times is None:
                    amounts.setdefault(step.op_name, set()).add(by)
    return amounts


def optimizers_of(graph: Graph) -> list[OptimizerSpec]:
    """Give the optimizers of what is on the PS that a graph's mutations use, each once, in order of creation."""
    used: dict[str, OptimizerSpec] = {}
    for node in graph.nodes:
        if isinstance(node, Mutation):
            for spec in (*node.uses, *(part.optimizer for part in node.parts)):
                if spec is not None and not spec.is_local:
                    used.setdefault(spec.name, spec)
    return list(used.values())
