"""Products of large matrices, and other work on arrays, in a thread for each core: ours, not those of the BLAS library.

OpenBLAS's threads wait for each other several times in every product, and do not sleep meanwhile: on a machine with
other work, another worker or a PS, a product then takes ten times as long as by one thread. Threads that each have a
part of their own wait for each other once, asleep; and what numpy does by one thread alone, such as copying, is done in
parts as well.

Layer: shared. Threads: functions may be called by several threads at once. The threads that they start have ended when
they return.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["in_parts", "matmul", "one_thread_each"]

#: Multiplications that are worth a thread: a fifth of a millisecond, of which starting it takes a quarter.
_MUCH = 1 << 23
#: Up to so many OpenBLAS takes one thread by itself; and up to so many if a side of the product is 1.
_LITTLE, _LITTLE_BY_VECTOR = 1 << 18, 1 << 13


class _Blas:
    """How many threads numpy's BLAS library uses: as it was configured, or one while anybody asks for that."""

    def __init__(self) -> None:
        self._get, self._set = _controls()
        # Guards the two below, and the library's number; a leaf.
        self._lock = threading.Lock()
        self._asked = 0
        self._configured = 1

    @contextlib.contextmanager
    def one_thread_each(self) -> Iterator[int]:
        """Let every product take one thread within a block; gives how many threads were configured."""
        if self._get is None or self._set is None:
            yield 1
            return
        with self._lock:
            if not self._asked:
                self._configured = max(int(self._get()), 1)
                if self._configured > 1:
                    self._set(1)
            self._asked += 1
            configured = self._configured
        try:
            yield configured
        finally:
            with self._lock:
                self._asked -= 1
                if not self._asked and configured > 1:
                    self._set(configured)


def _controls() -> tuple[Any, Any]:
    """Find the functions of OpenBLAS that numpy's wheels bring; None where numpy has another library."""
    for library in sorted((Path(np.__file__).parents[1] / "numpy.libs").glob("*openblas*")):
        with contextlib.suppress(OSError, AttributeError):
            loaded = ctypes.CDLL(str(library))
            return loaded.scipy_openblas_get_num_threads64_, loaded.scipy_openblas_set_num_threads64_
    return None, None


_blas = _Blas()
one_thread_each = _blas.one_thread_each


def in_parts(work: Callable[[slice], None], count: int, multiplications: int) -> None:
    """Do work on parts of `count` things at the same time, at most as many as the BLAS library may have threads.

    Args:
        work: Does it for some of them. Products within it take one thread.
        count: How many there are.
        multiplications: How many it takes for all of them, or other work of that size; small work is one part.

    Raises:
        Exception: Whatever `work` raises first.
    """
    with one_thread_each() as threads:
        most = max(min(threads, count, multiplications // _MUCH), 1)
        bounds = [count * at // most for at in range(most + 1)]
        failed: list[BaseException] = []

        def take(part: slice) -> None:
            try:
                work(part)
            except BaseException as error:
                failed.append(error)

        # What numpy says of overflow and the like is part of the context.
        helpers = [
            threading.Thread(
                target=contextvars.copy_context().run, args=(take, slice(*bounds[at : at + 2])), name="globalstep-part"
            )
            for at in range(1, most)
        ]
        for helper in helpers:
            helper.start()
        take(slice(0, bounds[1]))
        for helper in helpers:
            helper.join()
    if failed:
        raise failed[0]


def matmul(a: Any, b: Any) -> Any:
    """Multiply two matrices, as `np.matmul` does; a large product in parts of its longer side."""
    rows, columns = a.shape[0], b.shape[-1]
    multiplications = rows * a.shape[1] * columns
    if multiplications <= (_LITTLE if min(rows, columns) > 1 else _LITTLE_BY_VECTOR):
        return np.matmul(a, b)
    if multiplications < 2 * _MUCH or a.dtype != b.dtype or a.shape[1] != b.shape[0]:
        with one_thread_each():
            return np.matmul(a, b)
    out = np.empty((rows, columns), a.dtype)

    def by_rows(part: slice) -> None:
        np.matmul(a[part], b, out=out[part])

    def by_columns(part: slice) -> None:
        np.matmul(a, b[:, part], out=out[:, part])

    in_parts(by_rows if rows >= columns else by_columns, max(rows, columns), multiplications)
    return out
