"""Answers about the build, for programs that choose a device: here all computing is numpy's, on the CPU.

Layer: shared. Threads: functions only.
"""

from __future__ import annotations

__all__ = ["gpu_device_name", "is_built_with_cuda", "is_built_with_rocm", "is_gpu_available"]


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
