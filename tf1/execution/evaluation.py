"""Evaluating the steps of a plan: ordinary nodes by their function, and those the executor knows.

Layer: tf1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.errors import GlobalStepError, InternalError, InvalidArgumentError, NotFoundError
from globalstep.tf1.execution.plan import Plan, Step
from globalstep.tf1.graph.graph import Node
from globalstep.wire.declarations import Read

if TYPE_CHECKING:
    from globalstep.tf1.execution.executor import Executor

__all__ = ["compiled", "evaluate"]


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
        for fn, one, getter, out, node, inputs, last_uses in steps:
            if one is not None:
                values[out] = fn(values[one])
            elif fn is not None:
                values[out] = fn(*getter(values))
            else:
                values[out] = _special(node, inputs, values, plan, executor)
            for slot in last_uses:
                values[slot] = None
    except Exception as error:
        _explain(error, node, inputs, values)
        raise


def compiled(steps: Sequence[Step]) -> Callable[[list[Any], Plan, Executor], None]:
    """Give `evaluate` of these steps as a function that is written out, a line for each step.

    It takes less than half of what the loop does besides the steps' own functions, once it is made. Its text has
    nothing but numbers: of functions and of slots.

    Args:
        steps: See evaluate.

    Returns:
        What takes the slots, the plan and the executor, as evaluate does.
    """
    # Of this package, for who looks for the place in the program.
    names: dict[str, Any] = {"__name__": __name__}
    lines = ["def evaluate_all(v, plan, executor):"]
    for at, (fn, _, _, out, node, inputs, last_uses) in enumerate(steps):
        names[f"f{at}"] = partial(_special, node, inputs) if fn is None else fn
        args = "v, plan, executor" if fn is None else ", ".join(f"v[{slot}]" for slot in inputs)
        place = f"{out.start}:{out.stop}" if isinstance(out, slice) else out
        line = f" v[{place}] = f{at}({args})"
        lines.append("; ".join([line, *(f"v[{slot}] = None" for slot in last_uses)]))
    exec(compile("\n".join(lines), "<steps of a plan>", "exec"), names)
    evaluate_all: Any = names.pop("evaluate_all")

    def evaluate_or_explain(values: list[Any], plan: Plan, executor: Executor) -> None:
        try:
            evaluate_all(values, plan, executor)
        except Exception as error:
            failed = steps[_line_in(evaluate_all, error) - 2]
            _explain(error, failed.node, failed.inputs, values)
            raise

    return evaluate_or_explain


def _line_in(function: Any, error: Exception) -> int:
    """Give the line of a function in which it was left by an error."""
    return next(line for frame, line in walk_tb(error.__traceback__) if frame.f_code is function.__code__)


def _explain(error: Exception, node: Node, inputs: Sequence[int], values: Sequence[Any]) -> None:
    """Have the error of a step say where it was, by a note.

    Raises:
        InvalidArgumentError: In its place, where a function cannot take its inputs.
    """
    if isinstance(error, GlobalStepError):
        if isinstance(error, (InvalidArgumentError, NotFoundError)):
            error.add_note(_where(node))
    elif node.stateful or getattr(error, "of_program", False) or not isinstance(error, (ValueError, IndexError)):
        # A user's own function, or an input: its exception is part of the program.
        error.add_note(_where(node))
    else:
        shapes = ", ".join(str(np.shape(values[i])) for i in inputs)
        raise InvalidArgumentError(
            f"{error} [node {node.op_name!r} ({node.op_type}), inputs of shapes {shapes}{_defined(node)}]"
        ) from error


def _where(node: Node) -> str:
    return f"In node {node.op_name!r} ({node.op_type}{_defined(node)})."


def _defined(node: Node) -> str:
    return f", defined at {node.defined_at}" if node.defined_at else ""


def _special(node: Node, inputs: Sequence[int], values: list[Any], plan: Plan, executor: Executor) -> Any:
    if node.op_type == "GatherV2":
        ids = np.asarray(values[inputs[0]])
        (rows,) = executor.pull([Read(node.inputs[0].op_name, ids.astype(np.int64).reshape(-1))])
        return rows.reshape(*ids.shape, *rows.shape[1:])
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
