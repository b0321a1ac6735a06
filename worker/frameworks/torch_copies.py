"""Copies between arrays and the tensors of a GPU, through page-locked memory.

A copy between ordinary memory and a GPU makes the program wait for it. One of page-locked memory is queued, and the GPU
does it by itself: parameters go in one behind another, and while a gradient is sent the next one comes. PyTorch keeps
page-locked memory for further use, and knows until when a queued copy needs it (its notes on CUDA semantics).

Layer: worker. Threads: may be used by several; copies are queued on the calling thread's stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DeviceCopies"]


class DeviceCopies:
    """Copies of a PyTorch with CUDA.

    Args:
        pytorch: PyTorch.
    """

    def __init__(self, pytorch: Any) -> None:
        self._torch = pytorch

    def serves(self, tensor: Any) -> bool:
        """Say whether a tensor is on a device that this is for."""
        return bool(tensor.device.type == "cuda")

    def put(self, tensor: Any, value: npt.NDArray[Any]) -> None:
        """Queue the copy of a value into a tensor, rounded to its dtype; the value may be changed afterwards."""
        host = self._page_locked(tensor)
        if str(tensor.dtype).removeprefix("torch.") == value.dtype.name:
            np.copyto(host.numpy(), value)
        else:
            host.copy_(self._torch.tensor(value))
        tensor.detach().copy_(host, non_blocking=True)

    def begin(self, tensor: Any) -> Callable[[], Any]:
        """Queue the copy of a tensor to the host.

        Args:
            tensor: It; may be let go of at once.

        Returns:
            What waits for the copy, and gives it.
        """
        host = self._page_locked(tensor)
        host.copy_(tensor.detach(), non_blocking=True)
        return self._arrival(tensor, host)

    def _page_locked(self, tensor: Any) -> Any:
        return self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def _arrival(self, tensor: Any, host: Any) -> Callable[[], Any]:
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(tensor.device))

        def arrived() -> Any:
            event.synchronize()
            return host

        return arrived
