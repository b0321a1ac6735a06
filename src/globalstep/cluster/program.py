"""A program's declarations to the PS tasks: its Variables, optimizers and steps, by names.

A graph is one thing that declares so (`tf1/variables/graph_program.py`), a model's parameters with an optimizer are
another (`src/globalstep/optimizers/declared.py`).

Layer: shared. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from globalstep.errors import UnimplementedError
from globalstep.wire.declarations import OptimizerDecl, RowRange, VariableDecl


@dataclass(frozen=True, slots=True)
class ProgramVariable:
    """A Variable as a program has it.

    Attributes:
        name: Its name.
        dtype: numpy's name of its dtype, or "string".
        shape: Its shape, None for a size that is not known yet; None where not even their number is.
        trainable: Whether it is trained.
        primary: For a slot, the Variable it belongs to.
        optimizer: For a slot, the optimizer's name.
        slot: For a slot, its own name.
        is_step: Whether the program marked it as a step.
        is_table: Whether its gradient has rows alone.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    trainable: bool = False
    primary: str = ""
    optimizer: str = ""
    slot: str = ""
    is_step: bool = False
    is_table: bool = False

    @property
    def known_shape(self) -> tuple[int, ...] | None:
        """Its shape where all of it is known, else None."""
        if self.shape is None:
            return None
        sizes = tuple(size for size in self.shape if size is not None)
        return sizes if len(sizes) == len(self.shape) else None

    @property
    def nbytes(self) -> int:
        """Size of its value; 0 where that is not known.

        Raises:
            UnimplementedError: If it holds strings.
        """
        if self.dtype == "string":
            raise UnimplementedError(
                f"Variable {self.name!r} holds strings, and a PS task holds numbers. Keep it in the session, with "
                "collections=[gs.GraphKeys.LOCAL_VARIABLES], or use a constant or a lookup table."
            )
        shape = self.known_shape
        return 0 if shape is None else int(np.dtype(self.dtype).itemsize) * math.prod(shape)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a value of this shape can be its own."""
        return self.shape is None or (
            len(self.shape) == len(shape)
            and all(mine is None or mine == size for mine, size in zip(self.shape, shape, strict=True))
        )

    def declaration(
        self, shape: tuple[int, ...], shard: int, increments: Set[int] = frozenset(), parts: tuple[RowRange, ...] = ()
    ) -> VariableDecl:
        """Give it as the PS tasks know it.

        Args:
            shape: Its shape.
            shard: The PS task that holds it.
            increments: For a step, by how much pushes move it on besides 1.
            parts: Where its rows lie, if it is split.
        """
        return VariableDecl(
            name=self.name,
            dtype=self.dtype,
            shape=shape,
            shard=shard,
            trainable=self.trainable,
            is_step=self.is_step,
            primary=self.primary,
            optimizer=self.optimizer,
            slot=self.slot,
            parts=parts,
            increments=tuple(sorted(increments)),
        )


@dataclass(frozen=True)
class Program:
    """All that a program declares.

    Attributes:
        variables: Its Variables, in order of creation; those that are steps say so.
        optimizers: Its optimizers, in order of creation.
        increments: Step -> by how much its pushes move it on, where that is not by 1.
        copied: Pairs of Variables (source, target): a PS task assigns the source to the target.
    """

    variables: Sequence[ProgramVariable]
    optimizers: Sequence[OptimizerDecl] = ()
    increments: Mapping[str, Set[int]] = field(default_factory=dict)
    copied: Sequence[tuple[str, str]] = ()


class UniqueNames:
    """Numbers names that are used more than once, regardless of case: a file system may not tell them apart.

    Source of the rule: TensorFlow 1.15, `Graph.unique_name`.

    >>> names = UniqueNames()
    >>> names.unique("w"), names.unique("W"), names.unique("w")
    ('w', 'W_1', 'w_2')
    """

    def __init__(self) -> None:
        self._uses: dict[str, int] = {}

    def unique(self, name: str, mark_as_used: bool = True) -> str:
        """Return the name, with `_1`, `_2`, ... appended if it is used.

        Args:
            name: The name that is wanted.
            mark_as_used: Whether the name that is returned counts as used from now on.
        """
        key = name.lower()
        count, chosen = self._uses.get(key, 0), name
        if count:
            while f"{key}_{count}" in self._uses:
                count += 1
            chosen = f"{name}_{count}"
        if mark_as_used:
            self._uses[key] = count + 1
            if chosen != name:
                self._uses[chosen.lower()] = 1
        return chosen

    def mark_as_used(self, name: str) -> None:
        """Have a name count as used, whether it was or not."""
        self._uses.setdefault(name.lower(), 1)


@dataclass(frozen=True, slots=True)
class WholePart:
    """The part of a whole that a Variable holds; a checkpoint has the whole under one name."""

    full_name: str
    full_shape: list[int]
    var_offset: list[int]
    var_shape: list[int]

    @property
    def spec(self) -> str:
        """The part in TensorFlow's notation: "10 4 0,5:-", whole sizes then offset and size of each axis."""
        sizes = " ".join(map(str, self.full_shape))
        extents = ":".join(
            "-" if size == whole else f"{offset},{size}"
            for whole, offset, size in zip(self.full_shape, self.var_offset, self.var_shape, strict=True)
        )
        return f"{sizes} {extents}"
