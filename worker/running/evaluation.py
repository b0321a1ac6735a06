"""Evaluating the steps of a plan: ordinary nodes by their function, and those the executor knows.

Layer: worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.autodiff.gradients import evaluate_by_tape
from globalstep.errors import GlobalStepError, InternalError, InvalidArgumentError, NotFoundError
from globalstep.graph.graph import Node
from globalstep.wire.declarations import Read
from globalstep.worker.running.plan import EMPTY, Plan, Step

if TYPE_CHECKING:
    from globalstep.worker.running.executor import Executor

__all__ = ["evaluate"]


def evaluate(steps: Sequence[Step], values: list[Any], plan: Plan, executor: Executor) -> None:
    """Evaluate steps in order.

    Args:
        steps: The steps.
        values: Slots; their outputs are put there.
        plan: The plan that they belong to.
        executor: For what only the cluster knows.

    Raises:
        InvalidArgumentError: If a function cannot take its inputs; names the node and their shapes.
    """
    node, inputs = steps[0].node, steps[0].inputs
    try:
        for fn, one, given, out, node, inputs in steps:
            if one is not None:
                values[out] = fn(values[one])
            elif fn is not None:
                values[out] = fn(*given(values))
            else:
                values[out] = _special(node, inputs, values, plan, executor)
    except (InvalidArgumentError, NotFoundError) as error:
        error.add_note(_where(node))
        raise
    except GlobalStepError:
        raise
    except (ValueError, IndexError) as error:
        if node.stateful or getattr(error, "of_program", False):
            # A user's own function, or an input: its exception is part of the program.
            error.add_note(_where(node))
            raise
        shapes = ", ".join(str(np.shape(values[i])) for i in inputs)
        raise InvalidArgumentError(
            f"{error} [node {node.op_name!r} ({node.op_type}), inputs of shapes {shapes}{_defined(node)}]"
        ) from error
    except Exception as error:
        error.add_note(_where(node))
        raise


def _where(node: Node) -> str:
    return f"In node {node.op_name!r} ({node.op_type}{_defined(node)})."


def _defined(node: Node) -> str:
    return f", defined at {node.defined_at}" if node.defined_at else ""


def _special(node: Node, inputs: Sequence[int], values: list[Any], plan: Plan, executor: Executor) -> Any:
    if node.op_type == "Gradients":
        return _gradients(node, values, plan)
    if node.op_type == "GatherV2":
        ids = np.asarray(values[inputs[0]])
        (rows,) = executor.pull([Read(node.inputs[0].op_name, ids.astype(np.int64).reshape(-1))])
        return rows.reshape(*ids.shape, *rows.shape[1:])
    if "local_rounds" in node.attrs:
        return node.attrs["local_rounds"].take(executor, [values[i] for i in inputs])
    if "queue" in node.attrs:
        return node.attrs["queue"].held(executor.cluster.queues)
    if node.op_type == "IsVariableInitialized":
        return np.array(executor.are_initialized(node.attrs["variables"]), dtype=np.bool_)
    if node.op_type == "InitializedValue":
        variable = node.attrs["variable"]
        if not executor.are_initialized([variable])[0]:
            return values[inputs[0]]
        if variable.is_local:
            return executor.local.read(variable)
        return executor.pull([Read(variable.op_name)])[0]
    if node.is_operation:
        return None
    raise InternalError(f"Node {node.op_name!r} ({node.op_type}) has no function to evaluate it by.")


def _gradients(node: Node, values: list[Any], plan: Plan) -> Any:
    covered = plan.covered.get(node)
    if covered is None:
        covered = plan.find_covered(node)
    drawn: dict[Node, Any] = {}
    if all(map(is_, map(values.__getitem__, covered.values()), repeat(EMPTY))):
        schedule, given = plan.schedules.get(node) or plan.find_schedule(node)
        straight = None if schedule is None else schedule.evaluate([*map(values.__getitem__, given)], drawn)
        if straight is not None:
            found, forward = straight
            for slot, value in zip(covered.values(), forward, strict=True):
                values[slot] = value
            return found
    return _by_tape(node, values, plan, drawn)


def _by_tape(node: Node, values: list[Any], plan: Plan, drawn: dict[Node, Any]) -> Any:
    """Evaluate a Gradients node with what it covers, as far as that has no value yet."""

    def value_of(source: Node, consumer: Node) -> Any:
        return values[plan.slot_for(source, consumer)]

    covered = plan.covered[node]
    known = {one: values[slot] for one, slot in covered.items() if values[slot] is not EMPTY}
    found, forward = evaluate_by_tape(node, value_of, known, drawn)
    for one, slot in covered.items():
        if values[slot] is EMPTY:
            values[slot] = forward[one]
    return found
