"""Variables from checkpoints, as `tf.contrib.framework` and `tf.contrib.slim` assign them.

Layer: tf1. Source: TensorFlow 1.15 `contrib/framework/python/ops/variables.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from globalstep.chief.checkpoints.checkpoint import NewCheckpointReader
from globalstep.tf1.contrib.model_variables import get_variable_full_name
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.ops.control_flow_ops import group
from globalstep.tf1.sessions.saver import Saver

_log = logging.getLogger("globalstep")


def assign_from_checkpoint(
    model_path: str, var_list: Sequence[Any] | Mapping[str, Any], ignore_missing_vars: bool = False
) -> tuple[Node, dict[Node, Any]]:
    """Make an op that gives Variables the values of a checkpoint, which is read now.

    Args:
        model_path: Path of the checkpoint.
        var_list: The Variables, or name in the checkpoint -> Variable, or list of them.
        ignore_missing_vars: Whether to leave out what the checkpoint does not have.

    Returns:
        The op, and what to feed when it is run.

    Raises:
        ValueError: If the checkpoint lacks a Variable, or has it with another shape.
    """
    wanted: dict[str, list[Any]] = {}
    if isinstance(var_list, Mapping):
        wanted = {name: [*items] if isinstance(items, (list, tuple)) else [items] for name, items in var_list.items()}
    else:
        for variable in var_list:
            wanted.setdefault(get_variable_full_name(variable), []).append(variable)
    reader = NewCheckpointReader(model_path)
    assigned, feeds = [], {}
    for name, variables in wanted.items():
        if not reader.has_tensor(name):
            if not ignore_missing_vars:
                raise ValueError(f"Checkpoint is missing variable [{name}]")
            _log.warning("Checkpoint is missing variable [%s]", name)
            continue
        value = reader.get_tensor(name)
        for variable in variables:
            part = _part(name, variable, value)
            fed = placeholder(variable.dtype, variable.shape, name=f"placeholder/{variable.op_name}")
            assigned.append(variable.assign(fed))
            feeds[fed] = part
    return group(*assigned), feeds


def assign_from_checkpoint_fn(
    model_path: str,
    var_list: Sequence[Any] | Mapping[str, Any],
    ignore_missing_vars: bool = False,
    reshape_variables: bool = False,
) -> Callable[[Any], None] | None:
    """Give a function of a session that restores Variables: an `init_fn` for `slim.learning.train`.

    Args:
        model_path: Path of the checkpoint.
        var_list: The Variables, or name in the checkpoint -> Variable.
        ignore_missing_vars: Whether to leave out what the checkpoint does not have.
        reshape_variables: Whether to accept another shape with as many elements.

    Returns:
        The function; None if nothing is left to restore.

    Raises:
        ValueError: Without Variables.
    """
    if not var_list:
        raise ValueError("var_list cannot be empty")
    chosen = var_list
    if ignore_missing_vars:
        reader = NewCheckpointReader(model_path)
        by_name = dict(var_list) if isinstance(var_list, Mapping) else {one.op_name: one for one in var_list}
        for name in by_name:
            if not reader.has_tensor(name):
                _log.warning("Variable %s missing in checkpoint %s", name, model_path)
        chosen = {name: variable for name, variable in by_name.items() if reader.has_tensor(name)}
    if not chosen:
        _log.warning("No Variables to restore")
        return None
    saver = Saver(chosen, reshape=reshape_variables)
    return lambda session: saver.restore(session, model_path)


def _part(name: str, variable: Any, value: Any) -> Any:
    """Give what a Variable, or a part of a partitioned one, gets of a value."""
    cut = variable.save_slice_info
    if cut:
        places = zip(cut.var_offset, cut.var_shape, strict=True)
        return value[tuple(slice(start, start + size) for start, size in places)]
    if variable.shape.as_list() != list(value.shape):
        raise ValueError(
            f"Total size of new array must be unchanged for {name} lh_shape: [{value.shape}], "
            f"rh_shape: [{variable.shape}]"
        )
    return value
