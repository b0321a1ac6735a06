"""Leaves of jax parameters as arrays that parameter servers can hold.

Layer: worker. The caller passes jax.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.wire.codec import DTYPES
from globalstep.worker.frameworks.training_model import HALVES, Array


def array_of(jax: Any, path: str, leaf: Any) -> Array:
    """Give a leaf as an array; bfloat16 and float16 as float32.

    Args:
        jax: jax.
        path: The leaf's path, for messages.
        leaf: An array.

    Raises:
        TypeError: If it has a dtype that no Variable can have.
    """
    # jax's own conversion decides on the dtype.
    array = np.array(jax.numpy.asarray(leaf, "float32" if half_of(jax, leaf) else None))
    if array.dtype.name not in DTYPES:
        raise TypeError(
            f"gs.jax cannot make a Variable of {path!r}: it has dtype {array.dtype.name}, and a Variable is one "
            f"of {', '.join(DTYPES)}. Keep float32 parameters, and cast inside the loss."
        )
    return array


def half_of(jax: Any, leaf: Any) -> str | None:
    """Give the dtype to which a leaf's value is rounded for the loss, bfloat16 or float16; None for its own."""
    name = str(jax.numpy.result_type(leaf))
    return name if name in HALVES else None
