"""Tables that come to the parameter servers, and from them, some rows at a time: no client holds one.

Layer: worker. Threads: the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from globalstep.files.disk_arrays import IN_MEMORY_BYTES, PIECE_BYTES, array_on_disk
from globalstep.wire.declarations import Op, OpKind, Push, Read, nbytes_of

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

Array = npt.NDArray[Any]


def pieces_of(values: Array) -> Iterator[tuple[int, Array]]:
    """Give an array some rows at a time, each piece with the number of its first row.

    >>> [(at, len(rows)) for at, rows in pieces_of(np.zeros((3, 4 << 20), np.float32))]
    [(0, 1), (1, 1), (2, 1)]
    """
    rows = _rows_of(values.nbytes, len(values))
    for at in range(0, len(values), rows):
        yield at, values[at : at + rows]


def push_rows(cluster: ClusterClient, variable: str, pieces: Iterable[tuple[int, Array]]) -> None:
    """Give a Variable the values of its rows, piece by piece, a push each.

    Args:
        cluster: Where it is.
        variable: Its name; it has a value.
        pieces: Rows, each with the number of the first.
    """
    for at, rows in pieces:
        ids = np.arange(at, at + len(rows), dtype=np.int64)
        cluster.push(Push([Op(OpKind.ASSIGN, variable, np.ascontiguousarray(rows), indices=ids)]))


def pull_table(cluster: ClusterClient, variable: str) -> Array:
    """Give a Variable's value; a large one is pulled in pieces, into a temporary file.

    Args:
        cluster: Where it is; nobody changes it meanwhile.
        variable: Its name.
    """
    decl = cluster.variables[variable]
    nbytes = nbytes_of(decl)
    if nbytes <= IN_MEMORY_BYTES:
        return np.array(cluster.pull([Read(variable)])[0])
    table = array_on_disk(decl.shape, decl.dtype)
    rows = _rows_of(nbytes, len(table))
    for at in range(0, len(table), rows):
        ids = np.arange(at, min(at + rows, len(table)), dtype=np.int64)
        table[at : at + len(ids)] = cluster.pull([Read(variable, ids)])[0]
    return table


def _rows_of(nbytes: int, rows: int) -> int:
    return max(1, PIECE_BYTES * rows // max(1, nbytes))
