"""What a reader of results needs to know of where they were measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["beside_other_work", "machine"]


def beside_other_work(where: Mapping[str, Any]) -> str:
    """Say it of results that were made on a machine that had something else to do; "" otherwise."""
    busy = where["load_before"] > where["cores"]
    return " The machine had other work to do at the time, which took its share of all rates." if busy else ""


def machine() -> dict[str, Any]:
    """Describe this machine, its load now, and the versions of what counts."""
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpus[0].partition(":")[2].strip() if cpus else platform.processor(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        **{name: version(name) for name in ("grpcio", "protobuf", "numpy", "numba")},
    }
