"""Variables of models, and lists of them, as `tf.contrib.framework` and `tf.contrib.slim` have them.

Layer: tf1. Source: TensorFlow 1.15 `contrib/framework/python/ops/variables.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from globalstep.dtypes import DTypeLike
from globalstep.tf1.contrib.arg_scope import add_arg_scope
from globalstep.tf1.graph.device import DeviceSpec
from globalstep.tf1.graph.graph import (
    Graph,
    GraphKeys,
    Node,
    add_to_collection,
    device,
    get_collection,
    get_default_graph,
)
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.ops.control_flow_ops import group
from globalstep.tf1.variables.named_variables import get_variable
from globalstep.tf1.variables.training_util import assert_global_step, get_global_step
from globalstep.tf1.variables.variable_scope import VariableScope
from globalstep.tf1.variables.variables import Variable


class VariableDeviceChooser:
    """A device function that puts one Variable after the other on the next PS task: for the `device` of `variable`.

    Args:
        num_tasks: How many PS tasks there are; 0 for a device without a job.
        job_name: Their job.
        device_type: Type of the device.
        device_index: Its index.
        replica: Its replica.
    """

    def __init__(
        self,
        num_tasks: int = 0,
        job_name: str = "ps",
        device_type: str = "CPU",
        device_index: int = 0,
        replica: int | None = None,
    ) -> None:
        self._num_tasks, self._job_name = num_tasks, job_name
        self._device = (device_type, device_index, replica)
        self._next_task = 0

    def __call__(self, op: Any) -> str:
        """Give the device of a Variable; none for what belongs to it, such as its initial value."""
        if op.type != "VariableV2":
            return ""
        kind, index, replica = self._device
        spec = DeviceSpec(replica=replica, device_type=kind, device_index=index)
        if self._num_tasks > 0:
            spec.job, spec.task = self._job_name, self._next_task
            self._next_task = (self._next_task + 1) % self._num_tasks
        return spec.to_string()


@add_arg_scope
def variable(
    name: str,
    shape: Any = None,
    dtype: DTypeLike | None = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    use_resource: bool | None = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """Make the Variable of a name in the current scope, or take the one that exists; see `gs.get_variable`.

    `name`, and the other arguments, are those of `gs.get_variable`; `device` is the device it is put on.
    """
    keys = list(dict.fromkeys(collections if collections is not None else [GraphKeys.GLOBAL_VARIABLES]))
    with _device(device):
        return get_variable(
            name, shape, dtype, initializer, regularizer, trainable, keys, caching_device, partitioner,
            custom_getter=custom_getter,
        )  # fmt: skip


@add_arg_scope
def model_variable(
    name: str,
    shape: Any = None,
    dtype: DTypeLike | None = "float32",
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    use_resource: bool | None = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """Make or take a Variable that is in MODEL_VARIABLES, too; `name` and the others are those of `variable`."""
    keys = [*(collections or ()), GraphKeys.GLOBAL_VARIABLES, GraphKeys.MODEL_VARIABLES]
    # By name: an arg_scope may have the same arguments for `variable`.
    return variable(
        name, shape=shape, dtype=dtype, initializer=initializer, regularizer=regularizer, trainable=trainable,
        collections=keys, caching_device=caching_device, device=device, partitioner=partitioner,
        custom_getter=custom_getter,
    )  # fmt: skip


def _device(spec: Any) -> Any:
    return device(spec or "")


def renamed_getter(names: Mapping[str, str]) -> Callable[..., Any]:
    """Give a custom getter that makes the Variables of a layer of `gs.layers` as those of `tf.contrib.layers`.

    Args:
        names: Name that the layer gives -> name that it is to have.

    Returns:
        A custom getter; what it makes is in MODEL_VARIABLES, too.
    """

    def getter(true_getter: Callable[..., Any], name: str, *args: Any, **options: Any) -> Any:
        scope, slash, short = name.rpartition("/")
        keys = [*(options.pop("collections", None) or ()), GraphKeys.GLOBAL_VARIABLES, GraphKeys.MODEL_VARIABLES]
        name = f"{scope}{slash}{names.get(short, short)}"
        return true_getter(name, *args, collections=list(dict.fromkeys(keys)), **options)

    return getter


def local_variable(
    initial_value: Any, validate_shape: bool = True, name: str | None = None, use_resource: bool | None = None
) -> Variable:
    """Make a Variable that lives in each session and is not trained; see `gs.Variable` for `initial_value`."""
    keys = [GraphKeys.LOCAL_VARIABLES]
    return Variable(initial_value, trainable=False, collections=keys, validate_shape=validate_shape, name=name)


def global_variable(
    initial_value: Any, validate_shape: bool = True, name: str | None = None, use_resource: bool | None = None
) -> Variable:
    """Make a Variable that is shared and not trained; see `gs.Variable` for `initial_value`."""
    keys = [GraphKeys.GLOBAL_VARIABLES]
    return Variable(initial_value, trainable=False, collections=keys, validate_shape=validate_shape, name=name)


def add_model_variable(var: Variable) -> None:
    """Add `var` to MODEL_VARIABLES, unless it is there."""
    if var not in get_collection(GraphKeys.MODEL_VARIABLES):
        add_to_collection(GraphKeys.MODEL_VARIABLES, var)


def get_variables(
    scope: str | VariableScope | None = None, suffix: str | None = None, collection: str = GraphKeys.GLOBAL_VARIABLES
) -> list[Variable]:
    """List Variables.

    Args:
        scope: Only those whose name matches this regular expression from its start, or that are in this scope.
        suffix: Only those whose name ends so.
        collection: The collection to list.
    """
    pattern = scope.name if isinstance(scope, VariableScope) else scope
    if suffix is not None:
        pattern = f"{pattern or ''}.*{suffix if ':' in suffix else suffix + ':'}"
    return get_collection(collection, pattern)


def get_model_variables(scope: Any = None, suffix: str | None = None) -> list[Variable]:
    """List MODEL_VARIABLES; see `get_variables`."""
    return get_variables(scope, suffix, GraphKeys.MODEL_VARIABLES)


def get_local_variables(scope: Any = None, suffix: str | None = None) -> list[Variable]:
    """List LOCAL_VARIABLES; see `get_variables`."""
    return get_variables(scope, suffix, GraphKeys.LOCAL_VARIABLES)


def get_trainable_variables(scope: Any = None, suffix: str | None = None) -> list[Variable]:
    """List TRAINABLE_VARIABLES; see `get_variables`."""
    return get_variables(scope, suffix, GraphKeys.TRAINABLE_VARIABLES)


def get_variables_by_suffix(suffix: str, scope: Any = None) -> list[Variable]:
    """List the global Variables whose name ends with `suffix`; see `get_variables`."""
    return get_variables(scope, suffix)


def get_variables_by_name(given_name: str, scope: Any = None) -> list[Variable]:
    """List the global Variables whose last part of the name is `given_name`; see `get_variables`."""
    return get_variables(scope, f"/{given_name}:|^{given_name}:")


def get_unique_variable(var_op_name: str) -> Variable:
    """Give the global Variable of the name `var_op_name`.

    Raises:
        ValueError: If there is none.
    """
    candidates = get_variables(var_op_name)
    if not candidates:
        raise ValueError(f"Couldn't find variable {var_op_name}")
    for candidate in candidates:
        if candidate.op_name == var_op_name:
            return candidate
    raise ValueError(f"Variable {var_op_name} does not uniquely identify a variable")


def get_variable_full_name(var: Variable) -> str:
    """Give the name by which checkpoints hold `var`: that of the whole for a part of a partitioned Variable."""
    return str(var.save_slice_info.full_name) if var.save_slice_info else var.op_name


def get_variables_to_restore(
    include: Sequence[str] | None = None, exclude: Sequence[str] | None = None
) -> list[Variable]:
    """List global Variables to restore from a checkpoint.

    Args:
        include: Scopes whose Variables are listed; default all.
        exclude: Scopes whose Variables are left out.

    Raises:
        TypeError: If one is no list.
    """
    for what, names in (("include", include), ("exclude", exclude)):
        if names is not None and not isinstance(names, (list, tuple)):
            raise TypeError(f"{what} is provided but is not a list or a tuple.")
    chosen = get_variables() if include is None else [one for scope in include for one in get_variables(scope)]
    left_out = {one for scope in exclude or () for one in get_variables(scope)}
    return [one for one in chosen if one not in left_out]


def filter_variables(
    var_list: Sequence[Variable],
    include_patterns: Sequence[str] | None = None,
    exclude_patterns: Sequence[str] | None = None,
    reg_search: bool = True,
) -> list[Variable]:
    """Choose Variables by regular expressions.

    Args:
        var_list: The Variables.
        include_patterns: Those whose name has one of these; default all.
        exclude_patterns: But not those whose name has one of these.
        reg_search: Whether a pattern may be anywhere in a name; otherwise at its start.
    """
    fits = re.search if reg_search else re.match

    def has(one: Variable, patterns: Sequence[str]) -> bool:
        return any(fits(pattern, one.name) for pattern in patterns)

    chosen = [one for one in var_list if include_patterns is None or has(one, include_patterns)]
    return [one for one in chosen if exclude_patterns is None or not has(one, exclude_patterns)]


def assign_from_values(var_names_to_values: Mapping[str, Any]) -> tuple[Node, dict[Node, Any]]:
    """Make an op that gives Variables values.

    Args:
        var_names_to_values: Name of a global Variable -> array.

    Returns:
        The op, and what to feed when it is run.

    Raises:
        ValueError: If there is no such Variable.
    """
    feeds: dict[Node, Any] = {}
    assigned = []
    for name, value in var_names_to_values.items():
        variables = [one for one in get_collection(GraphKeys.GLOBAL_VARIABLES, name) if one.op_name == name]
        if not variables:
            raise ValueError(f"Variable {name} wasn't found")
        fed = placeholder(variables[0].dtype, variables[0].shape, name=f"placeholder/{name}")
        assigned.append(variables[0].assign(fed))
        feeds[fed] = value.reshape(variables[0].shape.as_list())
    return group(*assigned), feeds


def assign_from_values_fn(var_names_to_values: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Give a function of a session that gives Variables values; see `assign_from_values`.

    `var_names_to_values`: name of a global Variable -> array.
    """
    assign, feeds = assign_from_values(var_names_to_values)
    return lambda session: session.run(assign, feeds)


def assert_or_get_global_step(graph: Graph | None = None, global_step_tensor: Any = None) -> Any:
    """Give `global_step_tensor` if it is a step, or the graph's where it is None."""
    if global_step_tensor is None:
        with (graph or get_default_graph()).as_default():
            return get_global_step()
    assert_global_step(global_step_tensor)
    return global_step_tensor
