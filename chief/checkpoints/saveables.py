"""Saveables: what a checkpoint is to hold: names of Variables, and which parts of a whole they are.

Layer: chief. Threads: functions and plain data only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from globalstep.cluster.program import Program, WholePart
from globalstep.wire.declarations import VariableDecl
from globalstep.worker.protocol.splitting import part_name


@dataclass(frozen=True, slots=True)
class Saveable:
    """A Variable and its name in checkpoints; a part of a partitioned one has the name of the whole.

    Attributes:
        name: Its name in checkpoints.
        variable: The Variable's own name.
        primary: For a slot, the name of the Variable (or of the whole of it) that it belongs to.
        part: Which part of a whole it is.
        own: Whether it lives in its task's session, where no PS task has it: it is named and not saved.
        stored: The name that a PS task has it by, where that is another: see `stored_parts`.
    """

    name: str
    variable: str
    primary: str = ""
    part: WholePart | None = None
    own: bool = False
    stored: str = ""

    @property
    def stored_name(self) -> str:
        """Its name on the PS tasks."""
        return self.stored or self.variable

    @property
    def tensor(self) -> str:
        """The name of its tensor in a shard file: its own, and for a part which part it is."""
        return self.name if self.part is None else f"{self.name} {self.part.spec}"


def saveables_of_program(program: Program) -> list[Saveable]:
    """Give all Variables of a program, by name."""
    named = {variable.name: variable for variable in program.variables}
    return [Saveable(name, name, named[name].primary) for name in sorted(named)]


def stored_parts(saveables: Iterable[Saveable], declared: Mapping[str, VariableDecl]) -> list[Saveable]:
    """Give saveables as the PS tasks hold them: those that are split over several tasks as their parts."""
    parts: list[Saveable] = []
    for saveable in saveables:
        decl = declared.get(saveable.variable)
        if decl is None or not decl.parts:
            parts.append(saveable)
            continue
        inner = saveable.part
        shape = list(decl.shape)
        full_shape = shape if inner is None else list(inner.full_shape)
        offset = [0] * len(shape) if inner is None else list(inner.var_offset)
        for number, rows in enumerate(decl.parts):
            part = WholePart(
                full_name=saveable.name,
                full_shape=full_shape,
                var_offset=[offset[0] + rows.first, *offset[1:]],
                var_shape=[rows.end - rows.first, *shape[1:]],
            )
            parts.append(
                Saveable(saveable.name, saveable.variable, saveable.primary, part, stored=part_name(decl.name, number))
            )
    return parts
