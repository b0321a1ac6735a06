"""`gs.compat`: the names by which programs reach the API of TensorFlow 1.x, and its text helpers.

`gs.compat.v1` is globalstep itself, so `import globalstep.compat.v1 as tf` works as well.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import globalstep as v1

__all__ = [
    "as_bytes",
    "as_str",
    "as_str_any",
    "as_text",
    "disable_eager_execution",
    "disable_v2_behavior",
    "path_to_str",
    "v1",
]

sys.modules[f"{__name__}.v1"] = v1
#: A package, to Python: `import globalstep.compat.v1`.
__path__: list[str] = []


def as_bytes(bytes_or_text: str | bytes, encoding: str = "utf-8") -> bytes:
    """Give bytes as they are, and text encoded.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(bytes_or_text, str):
        return bytes_or_text.encode(encoding)
    if isinstance(bytes_or_text, bytes):
        return bytes_or_text
    raise TypeError(f"Expected binary or unicode string, got {bytes_or_text!r}")


def as_text(bytes_or_text: str | bytes, encoding: str = "utf-8") -> str:
    """Give text as it is, and bytes decoded.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(bytes_or_text, bytes):
        return bytes_or_text.decode(encoding)
    if isinstance(bytes_or_text, str):
        return bytes_or_text
    raise TypeError(f"Expected binary or unicode string, got {bytes_or_text!r}")


as_str = as_text


def as_str_any(value: Any) -> str:
    """Give bytes decoded, and anything else as `str` does."""
    return as_text(value) if isinstance(value, bytes) else str(value)


def path_to_str(path: Any) -> Any:
    """Give a path object as a string, and anything else as it is."""
    return os.fspath(path) if hasattr(path, "__fspath__") else path


def disable_v2_behavior() -> None:
    """Do nothing: this is the behaviour of TensorFlow 1.x."""


def disable_eager_execution() -> None:
    """Do nothing: nodes are computed when a session runs them."""
