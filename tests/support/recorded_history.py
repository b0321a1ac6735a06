"""Histories of what clients do and are told, for tests: docs/design/histories.md describes the form.

Layer: shared. Threads: as `write` is; each process or thread of a program has one operation at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from globalstep.runtime.clock import SYSTEM_CLOCK


class RecordedHistory:
    """Takes note of operations as they begin and end.

    Args:
        write: Takes each event, at once.
        now: Gives the time, of one clock for all processes.
    """

    def __init__(
        self, write: Callable[[dict[str, Any]], Any], now: Callable[[], float] = SYSTEM_CLOCK.monotonic
    ) -> None:
        self._write, self._now = write, now

    @contextlib.contextmanager
    def operation(self, process: str, f: str, **given: Any) -> Iterator[dict[str, Any]]:
        """Record an operation; gives where to put what its client is told, with "type" where that is not "ok".

        An error leaves it unknown what became of the operation; a process that is killed tells nothing.
        """
        self.note(process, "invoke", f, given)
        told: dict[str, Any] = {}
        try:
            yield told
        except Exception:
            self.note(process, "info", f, {})
            raise
        self.note(process, told.pop("type", "ok"), f, told)

    def note(self, process: str, kind: str, f: str, value: dict[str, Any]) -> None:
        """Record the beginning or an end of an operation."""
        self._write({"process": process, "type": kind, "f": f, "time": self._now(), "value": value})


def extremes(name: str, value: Any) -> dict[str, float]:
    """Give the least and the greatest of a value's numbers: where all are to be equal, both are.

    >>> extremes("w", [2.0, 3.0])
    {'w.min': 2.0, 'w.max': 3.0}
    """
    found = np.asarray(value)
    return {f"{name}.min": found.min().item(), f"{name}.max": found.max().item()}


def in_file(path: str | os.PathLike[str]) -> Callable[[dict[str, Any]], Any]:
    """Give what adds each event to a file at once, so that it outlives its process."""

    def write(event: dict[str, Any]) -> None:
        with open(path, "ab", buffering=0) as file:
            file.write(json.dumps(event).encode() + b"\n")

    return write
