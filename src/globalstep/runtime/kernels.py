"""Compiled loops: numba, kept in the user's cache folder so that the next process starts with them.

Layer: shared. Importing this module imports numba, about half a second; who may do without it imports it, and
what uses it, late.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from globalstep.runtime.process_env import kernel_cache_directory

# numba reads this when it is imported: without it, kernels would be kept beside the installed package,
# which another user may not be able to write.
if "NUMBA_CACHE_DIR" not in os.environ:
    os.environ["NUMBA_CACHE_DIR"] = kernel_cache_directory()

import numba

__all__ = ["COMPILER", "kernel", "read_only"]

#: How the file name of the compiler's library begins; what is compiled does not use it.
COMPILER = "libllvmlite"

Array = npt.NDArray[Any]


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop on first call for each dtype. It releases the GIL, and neither fuses nor reorders arithmetic.

    Numbers passed to a kernel have the arrays' dtype, and a kernel uses no literal but as an index:
    numba would compute `1.0 - x` in float64, which numpy would not.

    Args:
        function: The loop, over arrays and numbers.

    Returns:
        The compiled function.
    """
    return numba.njit(function, nogil=True, cache=True, error_model="numpy")  # type: ignore[no-any-return]


def read_only(array: Array) -> Array:
    """Give the same data as a read-only array: numba compiles for that flag, and once shall do."""
    view = array.view()
    view.flags.writeable = False
    return view
