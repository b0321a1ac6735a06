"""Answers about the build, for programs that choose a device: here all computing is numpy's, on the CPU.

Layer: tf1. Threads: functions only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "LocalDevice",
    "executing_eagerly",
    "gpu_device_name",
    "is_built_with_cuda",
    "is_built_with_rocm",
    "is_gpu_available",
    "list_local_devices",
]


@dataclass(frozen=True)
class LocalDevice:
    """A device of this machine that operations run on.

    Attributes:
        name: "/device:CPU:0".
        device_type: "CPU".
        memory_limit: In bytes; 0, since there is none of its own.
        physical_device_desc: What it is; "", as TensorFlow says of a CPU.
    """

    name: str
    device_type: str
    memory_limit: int = 0
    physical_device_desc: str = ""


def list_local_devices(session_config: Any = None) -> list[LocalDevice]:
    """List the devices that operations run on: the CPU.

    Args:
        session_config: Accepted as in TensorFlow.
    """
    return [LocalDevice("/device:CPU:0", "CPU")]


def executing_eagerly() -> bool:
    """Say whether operations are computed when they are written: False, a session runs them."""
    return False


def is_built_with_cuda() -> bool:
    """Say whether operations run on GPUs of NVIDIA: False, also where a loss of `gs.torch` does."""
    return False


def is_built_with_rocm() -> bool:
    """Say whether operations run on GPUs of AMD: False."""
    return False


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: tuple[int, int] | None = None) -> bool:
    """Say whether operations run on a GPU: False.

    Args:
        cuda_only: Accepted as in TensorFlow.
        min_cuda_compute_capability: Accepted as in TensorFlow.
    """
    return False


def gpu_device_name() -> str:
    """Give the name of a GPU's device: "", as TensorFlow does where there is none."""
    return ""
