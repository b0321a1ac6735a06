"""Saveables: the Variables that a Saver saves, their names, and which parts of a whole they are.

Layer: chief. Threads: functions and plain data only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from globalstep.files.shard_file import check_dtype
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable, SaveSliceInfo
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import VariableDecl
from globalstep.worker.protocol.splitting import part_name

__all__ = ["Saveable", "saveables_of", "stored_parts"]


@dataclass(frozen=True, slots=True)
class Saveable:
    """A Variable and its name in checkpoints; a part of a partitioned one has the name of the whole.

    `stored` is the name that a PS task has it by, where that is another: see `stored_parts`.
    """

    name: str
    variable: Variable
    part: SaveSliceInfo | None = None
    stored: str = ""

    @property
    def stored_name(self) -> str:
        """What a PS task calls it."""
        return self.stored or self.variable.op_name

    @property
    def tensor(self) -> str:
        """The name of its tensor in a shard file: its own, and for a part which part it is."""
        return self.name if self.part is None else f"{self.name} {self.part.spec}"

    @property
    def primary(self) -> str:
        """For a slot, the name of the Variable (or of the whole of it) that it belongs to."""
        primary = self.variable.primary
        if primary is None:
            return ""
        part: SaveSliceInfo | None = primary.save_slice_info
        return primary.op_name if part is None else part.full_name


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
    found: dict[str, Saveable] = {}
    whole: dict[str, bool] = {}
    for saveable in _flat(var_list):
        name, variable = saveable.name, saveable.variable
        clash = found.get(saveable.tensor)
        if (clash is not None and clash.variable is not variable) or whole.setdefault(name, saveable.part is None) != (
            saveable.part is None
        ):
            raise ValueError(f"At least two variables have the same name: {name}")
        if variable.is_local and not variable.is_own:
            raise ValueError(
                f"The Variable {variable.op_name!r} is local to each session; checkpoints hold those of the PS. "
                "Leave it out of var_list."
            )
        check_dtype(variable.op_name, variable.dtype.as_numpy_dtype)
        found[saveable.tensor] = saveable
    return [found[tensor] for tensor in sorted(found)]


def stored_parts(saveables: Iterable[Saveable], declared: Mapping[str, VariableDecl]) -> list[Saveable]:
    """Give saveables as the PS tasks hold them: one that is split over several tasks becomes its parts.

    Args:
        saveables: As the program means them.
        declared: What the run has.
    """
    found: list[Saveable] = []
    for saveable in saveables:
        decl = declared.get(saveable.variable.op_name)
        if decl is None or not decl.parts:
            found.append(saveable)
            continue
        inner = saveable.part
        shape = list(decl.shape)
        full_shape = shape if inner is None else list(inner.full_shape)
        offset = [0] * len(shape) if inner is None else list(inner.var_offset)
        for number, rows in enumerate(decl.parts):
            part = SaveSliceInfo(
                full_name=saveable.name,
                full_shape=full_shape,
                var_offset=[offset[0] + rows.first, *offset[1:]],
                var_shape=[rows.end - rows.first, *shape[1:]],
            )
            found.append(Saveable(saveable.name, saveable.variable, part, part_name(decl.name, number)))
    return found


def _flat(var_list: Iterable[Any] | Mapping[str, Any]) -> Iterator[Saveable]:
    items = var_list.items() if isinstance(var_list, Mapping) else ((None, item) for item in var_list)
    for name, item in items:
        # As in TensorFlow, a name may stand for the list of a partitioned Variable's parts.
        parts = list(item) if isinstance(item, (PartitionedVariable, list, tuple)) else [item]
        for variable in parts:
            if not isinstance(variable, Variable):
                raise TypeError(f"Variable to save is not a Variable: {variable}")
            part: SaveSliceInfo | None = variable.save_slice_info
            own_name = variable.op_name if part is None else part.full_name
            yield Saveable(own_name if name is None else str(name), variable, part)
