"""Products of large matrices, and other work on arrays, in a thread for each core: ours, not those of the BLAS library.

OpenBLAS's threads wait for each other several times in every product, and do not sleep meanwhile: on a machine with
other work, another worker or a PS, a product then takes ten times as long as by one thread. Threads that each have a
part of their own wait for each other once, asleep; and what numpy does by one thread alone, such as copying, is done in
parts as well. How work is divided depends on its size and on the BLAS library's settings alone, so results do not
depend on what else the machine does.

Layer: tf1. Threads: functions may be called by several threads at once; those that help are
`globalstep.tf1.execution.offered_work`'s.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from globalstep.tf1.execution.offered_work import offer

#: Multiplications that are worth a thread: a twentieth of a millisecond, of which waking it takes a quarter.
_MUCH = 1 << 21
#: Up to so many OpenBLAS takes one thread by itself; and up to so many if a side of the product is 1.
_LITTLE, _LITTLE_BY_VECTOR = 1 << 18, 1 << 13
#: A function of numbers takes as long as so many multiplications for each.
_ELEMENTWISE = 16
#: From so many rows on, it costs little to repeat what goes with each of them once.
_ROWS = 8


class _Blas:
    """The number of threads of numpy's BLAS library: as configured, or one within a block `with` this."""

    def __init__(self) -> None:
        self._get, self._set = _controls()
        # Guards the two below, and the library's number; a leaf.
        self._lock = threading.Lock()
        self._asked = 0
        self._configured = 1

    def __enter__(self) -> int:
        """Let every product take one thread; gives how many threads were configured."""
        if self._get is None:
            return 1
        with self._lock:
            if not self._asked:
                self._configured = max(int(self._get()), 1)
                if self._configured > 1:
                    self._set(1)
            self._asked += 1
            return self._configured

    def __exit__(self, *_: object) -> None:
        if self._get is None:
            return
        with self._lock:
            self._asked -= 1
            if not self._asked and self._configured > 1:
                self._set(self._configured)


def _controls() -> tuple[Any, Any]:
    """Find the functions of OpenBLAS that numpy's wheels bring; None where numpy has another library."""
    for library in sorted((Path(np.__file__).parents[1] / "numpy.libs").glob("*openblas*")):
        with contextlib.suppress(OSError, AttributeError):
            loaded = ctypes.CDLL(str(library))
            return loaded.scipy_openblas_get_num_threads64_, loaded.scipy_openblas_set_num_threads64_
    return None, None


_blas = _Blas()


def one_thread_each() -> contextlib.AbstractContextManager[int]:
    """Let every product take one thread within a block; gives how many threads were configured."""
    return _blas


def in_parts(work: Callable[[slice], None], count: int, multiplications: int) -> None:
    """Do work on parts of `count` things at the same time, at most as many as the BLAS library may have threads.

    Args:
        work: Does it for some of them. Products within it take one thread.
        count: How many there are.
        multiplications: How many it takes for all of them, or other work of that size; small work is one part.

    Raises:
        Exception: Whatever `work` raises first.
    """
    with _blas as threads:
        most = max(min(threads, count, multiplications // _MUCH), 1)
        if most == 1:
            work(slice(0, count))
            return
        bounds = [count * at // most for at in range(most + 1)]
        others = [offer(partial(work, slice(*bounds[at : at + 2])), threads - 1) for at in range(1, most)]
        failed: list[BaseException] = []
        try:
            work(slice(0, bounds[1]))
        except BaseException as error:
            failed.append(error)
        # Helpers begin with the first, so this thread takes back the last.
        for other in reversed(others):
            try:
                other.result()
            except BaseException as error:
                failed.append(error)
    if failed:
        raise failed[0]


def elementwise(function: Callable[..., Any], *operands: Any) -> Any:
    """Apply a function of numbers; to a large array in parts of its first axis.

    Args:
        function: Takes the operands, and `out=`: a ufunc, or what is made of some. The result has the operands' dtype.
        *operands: Arrays of one dtype, which broadcast.

    Returns:
        What the function gives for them, to the last bit.
    """
    first = operands[0]
    if _ELEMENTWISE * first.size < 2 * _MUCH or not all(_goes_into(first, other) for other in operands[1:]):
        return function(*operands)
    out = np.empty(first.shape, first.dtype)
    divided = [other.ndim == first.ndim and len(other) > 1 for other in operands]
    if len(first) >= _ROWS:
        # numpy is quicker over one long run of numbers than over many short ones.
        operands = tuple(
            other if is_divided else np.array(np.broadcast_to(other, (1, *first.shape[1:])))
            for other, is_divided in zip(operands, divided, strict=True)
        )

    def apply(part: slice) -> None:
        parts = (other[part] if is_divided else other for other, is_divided in zip(operands, divided, strict=True))
        function(*parts, out=out[part])

    in_parts(apply, len(first), _ELEMENTWISE * first.size)
    return out


def _goes_into(whole: Any, other: Any) -> bool:
    """Say whether an array broadcasts to the shape of another one, and has its dtype."""
    sizes = zip(reversed(other.shape), reversed(whole.shape), strict=False)
    return other.ndim <= whole.ndim and other.dtype == whole.dtype and all(one in (1, size) for one, size in sizes)


def matmul(a: Any, b: Any) -> Any:
    """Multiply two matrices, as `np.matmul` does; a large product in parts of its longer side."""
    rows, columns = a.shape[0], b.shape[-1]
    multiplications = rows * a.shape[1] * columns
    if a.shape[1] == b.shape[0] == 1:
        return a * b  # of which the BLAS library makes more work
    if multiplications <= (_LITTLE if min(rows, columns) > 1 else _LITTLE_BY_VECTOR):
        return np.matmul(a, b)
    if multiplications < 2 * _MUCH or a.dtype != b.dtype or a.shape[1] != b.shape[0]:
        with _blas:
            return np.matmul(a, b)
    out = np.empty((rows, columns), a.dtype)

    def by_rows(part: slice) -> None:
        np.matmul(a[part], b, out=out[part])

    def by_columns(part: slice) -> None:
        np.matmul(a, b[:, part], out=out[:, part])

    in_parts(by_rows if rows >= columns else by_columns, max(rows, columns), multiplications)
    return out
