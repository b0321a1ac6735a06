"""`gs.WireOptions`: fewer bytes between a worker and the PS tasks, on request.

Each worker decides for itself: a program gives them in its session's `ConfigProto(wire=...)`; one that must not be
changed gets them from the environment variable GLOBALSTEP_WIRE, e.g. "dtype=bfloat16,top_k=0.01". The PS tasks
keep float32, whatever crosses the wire.

Layer: shared. Immutable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from globalstep.cluster.run_policy import options_in
from globalstep.errors import InvalidArgumentError

WIRE_VARIABLE = "GLOBALSTEP_WIRE"
_DTYPES = ("float32", "bfloat16", "float16", "int8")


@dataclass(frozen=True, slots=True)
class WireOptions:
    """How a worker's gradients and the values that it reads cross the wire.

    Args:
        dtype: "float32": as they are. "bfloat16": rounded to 8 bits of precision, with float32's range. "float16":
            11 bits, and nothing beyond 65504: for gradients of moderate size. Both halve the bytes each way. "int8":
            gradients are multiples of a power of two that each 32 have together, in a quarter of the bytes, with error
            feedback; values, which have none, and rows of tables are as with "bfloat16".
        top_k: Of each dense gradient only this fraction of the elements is sent, the largest; the rest is kept and
            added to the next one (error feedback), so that nothing is lost, only late. 1.0 sends all.
        error_feedback: Keep what rounding takes away from dense gradients as well, and add it to the next ones. With
            "int8", and of the differences of `gs.LocalSteps`, it is kept in any case.

    Raises:
        InvalidArgumentError: If there is no such dtype, or the fraction is not in (0, 1].

    >>> WireOptions(dtype="bfloat16")
    WireOptions(dtype='bfloat16', top_k=1.0, error_feedback=False)
    """

    dtype: str = "float32"
    top_k: float = 1.0
    error_feedback: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise InvalidArgumentError(f"WireOptions: dtype is {self.dtype!r}; it must be one of {_DTYPES}.")
        if not 0.0 < self.top_k <= 1.0:
            raise InvalidArgumentError(f"WireOptions: top_k is {self.top_k}; it must be above 0 and at most 1.")

    @classmethod
    def from_text(cls, text: str) -> WireOptions:
        """Read "dtype=...,top_k=...,error_feedback=...".

        Raises:
            InvalidArgumentError: If there is no such name, or its value cannot be.

        >>> WireOptions.from_text("top_k=0.01")
        WireOptions(dtype='float32', top_k=0.01, error_feedback=False)
        """
        return options_in(cls, text)


def wire_options_of(config: Any, environ: Mapping[str, str] = os.environ) -> WireOptions:
    """Decide how a session's numbers cross the wire: its configuration beats the environment.

    Raises:
        InvalidArgumentError: If what is given there are no such options.
    """
    given = getattr(config, "wire", None)
    if given is None:
        return WireOptions.from_text(environ.get(WIRE_VARIABLE, ""))
    if not isinstance(given, WireOptions):
        raise InvalidArgumentError(f"ConfigProto.wire is {given!r}; it must be a gs.WireOptions.")
    return given
