"""Arrays of the size of tables, on disk instead of in memory.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Larger values are not held in memory by who only passes them on, or looks some rows up.
IN_MEMORY_BYTES = 64 << 20
#: What such values are passed on in.
PIECE_BYTES = 16 << 20


def array_on_disk(shape: Sequence[int], dtype: Any) -> Array:
    """Give an array of zeros that lies in an unnamed temporary file.

    It is like any other array. The system keeps of it in memory what there is room for; the file is where TMPDIR says,
    and gone with the array.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    with tempfile.TemporaryFile(prefix="globalstep-array-") as file:
        file.truncate(max(1, nbytes))
        # The map keeps the file.
        held = mmap.mmap(file.fileno(), max(1, nbytes))
    return np.frombuffer(held, dtype, math.prod(shape)).reshape(tuple(shape))
