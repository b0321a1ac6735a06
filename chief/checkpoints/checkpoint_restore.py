"""Restoring a checkpoint: its tensors are read, checked against the program and pushed as one mutation.

Of large ones, such as tables, no client holds the whole: their rows come first, a push for each piece, once all of
their checksums have been compared. On which shard a tensor was saved does not matter, so a checkpoint restores onto any
number of PS tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from globalstep.chief.checkpoints.checkpoint import CheckpointReader
from globalstep.chief.checkpoints.checkpoint_format import SavedVariable
from globalstep.chief.checkpoints.saveables import Saveable
from globalstep.cluster.placement import Declarations, declared_by
from globalstep.cluster.program import Program, ProgramVariable
from globalstep.errors import InvalidArgumentError, NotFoundError
from globalstep.files.disk_arrays import IN_MEMORY_BYTES
from globalstep.wire.declarations import Op, OpKind, Push, VariableDecl, nbytes_of
from globalstep.worker.client.row_pieces import push_rows
from globalstep.worker.protocol.splitting import whole_name

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


Array = npt.NDArray[Any]


def restore_into(
    cluster: ClusterClient,
    program: Callable[[], Program],
    reader: CheckpointReader,
    saveables: Sequence[Saveable],
    reshape: bool = False,
) -> None:
    """Give Variables the values of a checkpoint, in one push but for large ones; nothing changes if anything is wrong.

    Args:
        cluster: A client of the PS tasks.
        program: Gives what declares the Variables, where some are not declared yet.
        reader: The open checkpoint.
        saveables: What to restore; parts of a whole may be others than those that were saved.
        reshape: Accept a tensor of another shape with as many elements.

    Raises:
        NotFoundError: If the checkpoint lacks a name.
        InvalidArgumentError: If a shape or dtype is another.
        CheckpointError: If a tensor is corrupt.
    """
    decls = _declarations(cluster, program, reader, saveables, reshape)
    ops: list[Op] = []
    in_pieces: dict[str, Iterator[tuple[int, Array]]] = {}
    for saveable in saveables:
        name, saved = saveable.variable, reader.index.variables[saveable.name]
        offset: Sequence[int] = (0,) * len(saved.shape)
        shape: Sequence[int] = saved.shape
        if saveable.part is not None:
            offset, shape = saveable.part.var_offset, saveable.part.var_shape
        if nbytes_of(decls[name]) > IN_MEMORY_BYTES and tuple(shape) == decls[name].shape:
            in_pieces[name] = reader.checked_rows(saveable.name, offset, shape)
        else:
            value = reader.get_slice(saveable.name, offset, shape)
            ops.append(Op(OpKind.ASSIGN, name, value=value.reshape(decls[name].shape)))
    without = {whole_name(name) for status in cluster.refresh() for name in status.uninitialized} if in_pieces else ()
    for name, rows in in_pieces.items():
        if name in without:
            cluster.push(Push([Op(OpKind.ASSIGN, name, fill=0.0)]))
        push_rows(cluster, name, rows)
    # Last: who waits until all Variables have values finds these.
    cluster.push(Push(ops=ops))


def _declarations(
    cluster: ClusterClient,
    program: Callable[[], Program],
    reader: CheckpointReader,
    saveables: Sequence[Saveable],
    reshape: bool,
) -> dict[str, VariableDecl]:
    """Check every Variable against its tensor, then declare those that the cluster does not know yet."""
    if any(saveable.variable not in cluster.variables for saveable in saveables):
        cluster.refresh()
    known: dict[str, VariableDecl] = dict(cluster.variables)
    planned: Declarations | None = None
    of_program: Sequence[ProgramVariable] = ()
    for saveable in saveables:
        name, variable = saveable.name, saveable.variable
        saved = reader.index.variables.get(name)
        if saved is None:
            raise NotFoundError(f"Key {name} not found in checkpoint {reader.prefix} (for Variable {variable!r})")
        if variable not in known:
            if planned is None:
                whole = program()
                run = cluster.shards, cluster.policy, cluster.sequencer, cluster.where, cluster.variables
                planned, of_program = declared_by(whole, *run), whole.variables
                known = {decl.name: decl for decl in planned.variables} | known
            # A Variable made with validate_shape=False has the shape of what is assigned to it.
            if variable not in known:
                unshaped = next(item for item in of_program if item.name == variable)
                known[variable] = unshaped.declaration(saved.shape, planned.shards[variable])
        decl = known[variable]
        if saveable.part is None:
            _require_match(reader.prefix, name, saved, decl, decl.shape, reshape)
        else:
            _require_match(reader.prefix, name, saved, decl, tuple(saveable.part.full_shape), False)
    if planned is not None:
        cluster.declare([decl for decl in known.values() if decl.name not in cluster.variables], planned.optimizers)
    return known


def _require_match(
    prefix: str, name: str, saved: SavedVariable, decl: VariableDecl, shape: tuple[int, ...], reshape: bool
) -> None:
    if saved.dtype != decl.dtype:
        raise InvalidArgumentError(
            f"tensor_name = {name}; expected dtype {decl.dtype} does not equal original dtype {saved.dtype} "
            f"(Variable {decl.name!r}, checkpoint {prefix})"
        )
    if saved.shape != shape and not (reshape and math.prod(saved.shape) == math.prod(shape)):
        raise InvalidArgumentError(
            "Assign requires shapes of both tensors to match. "
            f"lhs shape= {_brackets(shape)} rhs shape= {_brackets(saved.shape)} "
            f"(Variable {decl.name!r}, tensor {name!r} of checkpoint {prefix})"
        )


def _brackets(shape: tuple[int, ...]) -> str:
    return f"[{','.join(str(size) for size in shape)}]"
