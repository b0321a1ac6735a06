"""Functions over the Variables of a graph: lists of them, their initializers, and what has no value yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import FailedPreconditionError
from globalstep.tf1.graph.graph import GraphKeys, Node, get_collection, get_default_graph, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.variables.variables import Variable, variables_of


def global_variables(scope: str | None = None) -> list[Variable]:
    """List the Variables shared through the PS, in order of creation.

    Args:
        scope: Only those whose name matches this regular expression from its start.
    """
    return get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def all_variables() -> list[Variable]:
    """List them under TensorFlow's oldest name; see `global_variables`."""
    return global_variables()


def trainable_variables(scope: str | None = None) -> list[Variable]:
    """List the Variables that optimizers take by default; see `global_variables`."""
    return get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Variable]:
    """List the Variables that live in each session; see `global_variables`."""
    return get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Variable]:
    """List the collection MODEL_VARIABLES; see `global_variables`."""
    return get_collection(GraphKeys.MODEL_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[Variable]:
    """List the Variables that have a moving average; see `global_variables`."""
    return get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def variables_initializer(var_list: Sequence[Variable], name: str = "init") -> Mutation:
    """Make the operation that declares Variables to the PS and gives them their initial values.

    Args:
        var_list: The Variables.
        name: Name of the operation.

    Returns:
        One operation; all values are assigned in one push.
    """
    parts = [part for variable in var_list for part in variable.initializer.parts]
    return Mutation(parts, op_type="NoOp", name=name)


def global_variables_initializer() -> Mutation:
    """Make the operation that initializes `global_variables()` as they are now."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Mutation:
    """Make the operation that initializes `local_variables()` as they are now, and what optimizers keep of them.

    Source: TensorFlow 1.15 initializes slots of theirs with GLOBAL_VARIABLES only, which no task but the chief runs.
    """
    slots = [variable for variable in variables_of(get_default_graph()) if variable.is_own and variable.optimizer_name]
    return variables_initializer([*dict.fromkeys([*local_variables(), *slots])], name="init_local")


# TensorFlow's older names.
initialize_all_variables = global_variables_initializer
initialize_variables = variables_initializer
initialize_local_variables = local_variables_initializer


def is_variable_initialized(variable: Variable) -> Node:
    """Make a node that says whether a Variable has a value: a bool scalar."""
    with variable.graph.as_default():
        return tuple_item(_have_values([variable]), 0, name="Identity", dtype=np.bool_, shape=())


def report_uninitialized_variables(
    var_list: Sequence[Variable] | None = None, name: str = "report_uninitialized_variables"
) -> Node:
    """Make a node that names the Variables without a value.

    Args:
        var_list: Which Variables; default global and local ones.
        name: Name of the node.

    Returns:
        A node whose value is an object array [n] of names as bytes, empty when all have one.
    """
    return _told("UninitializedVariables", var_list, name=name, dtype=np.object_, shape=[None])


@computes("UninitializedVariables")
def _missing(have: Any, *, variables: Sequence[Variable]) -> npt.NDArray[Any]:
    names = [one.op_name.encode() for one, has in zip(variables, have, strict=True) if not has]
    return np.array(names, dtype=object)


def assert_variables_initialized(var_list: Sequence[Variable] | None = None) -> Node:
    """Make an operation that raises FailedPreconditionError if a Variable has no value.

    Args:
        var_list: Which Variables; default global and local ones.
    """
    return _told("AssertInitialized", var_list, name="Assert", operation=True, stateful=True)


@computes("AssertInitialized")
def _require_none(have: Any, *, variables: Sequence[Variable]) -> None:
    for name in _missing(have, variables=variables):
        raise FailedPreconditionError(f"Attempting to use uninitialized value {name.decode()}")


def _told(op_type: str, var_list: Sequence[Variable] | None, **how: Any) -> Node:
    """Make a node that is told which Variables have a value."""
    wanted = list(var_list) if var_list is not None else [*global_variables(), *local_variables()]
    return Node(op_type, (_have_values(wanted),), attrs={"variables": tuple(wanted)}, **how)


def _have_values(variables: Sequence[Variable]) -> Node:
    """A bool node [n] whose value only the executor knows."""
    return Node(
        "IsVariableInitialized", name="IsVariableInitialized", dtype=np.bool_, shape=[len(variables)],
        attrs={"variables": tuple(variables)}, stateful=True,
    )  # fmt: skip
