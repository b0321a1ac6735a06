"""Saveables of the Variables that a Saver's `var_list` names.

Layer: tf1. Threads: functions only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from globalstep.chief.checkpoints.checkpoint_save import Saveable
from globalstep.files.shard_file import check_dtype
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable, SaveSliceInfo
from globalstep.tf1.variables.variables import Variable


def saveables_of(var_list: Iterable[Any] | Mapping[str, Any]) -> list[Saveable]:
    """Give what a `var_list` means.

    Args:
        var_list: Variables and PartitionedVariables, or names in the checkpoint -> such.

    Returns:
        One for each Variable, by name and part.

    Raises:
        TypeError: If it holds something else.
        ValueError: If two have the same name, or one is local to each session.
        InvalidArgumentError: If a checkpoint cannot hold one's dtype.
    """
    by_tensor: dict[str, tuple[Saveable, Variable]] = {}
    whole: dict[str, bool] = {}
    for saveable, variable in _flat(var_list):
        name = saveable.name
        clash = by_tensor.get(saveable.tensor)
        if (clash is not None and clash[1] is not variable) or whole.setdefault(name, saveable.part is None) != (
            saveable.part is None
        ):
            raise ValueError(f"At least two variables have the same name: {name}")
        if variable.is_local and not variable.is_own:
            raise ValueError(
                f"The Variable {variable.op_name!r} is local to each session; checkpoints hold those of the PS. "
                "Leave it out of var_list."
            )
        check_dtype(variable.op_name, variable.dtype.as_numpy_dtype)
        by_tensor[saveable.tensor] = saveable, variable
    return [by_tensor[tensor][0] for tensor in sorted(by_tensor)]


def _flat(var_list: Iterable[Any] | Mapping[str, Any]) -> Iterator[tuple[Saveable, Variable]]:
    items = var_list.items() if isinstance(var_list, Mapping) else ((None, item) for item in var_list)
    for name, item in items:
        # As in TensorFlow, a name may stand for the list of a partitioned Variable's parts.
        parts = list(item) if isinstance(item, (PartitionedVariable, list, tuple)) else [item]
        for variable in parts:
            if not isinstance(variable, Variable):
                raise TypeError(f"Variable to save is not a Variable: {variable}")
            part: SaveSliceInfo | None = variable.save_slice_info
            own_name = _whole_name(variable)
            primary = "" if variable.primary is None else _whole_name(variable.primary)
            own = bool(variable.is_own)
            yield Saveable(own_name if name is None else str(name), variable.op_name, primary, part, own), variable


def _whole_name(variable: Variable) -> str:
    part: SaveSliceInfo | None = variable.save_slice_info
    return variable.op_name if part is None else part.full_name
