"""A PyTorch module with values from elsewhere: parameters in, loss and gradients out.

A copy between ordinary memory and a GPU makes the program wait for it. One of page-locked memory is queued, and the GPU
does it by itself: parameters go in one behind another, and while a gradient is sent the next one comes. PyTorch keeps
page-locked memory for further use, and knows until when a queued copy needs it (its notes on CUDA semantics).

Layer: worker. The caller passes PyTorch. Threads: one evaluation at a time; copies are queued on its thread's stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from globalstep.wire.codec import DTYPES
from globalstep.worker.frameworks.training_model import HALVES, Array, Evaluation
from globalstep.worker.step.model import Parameter


class TorchModule:
    """A module: how values come in and gradients go out. It holds the values of one evaluation at a time.

    Args:
        pytorch: PyTorch.
        module: The module.

    Attributes:
        parameters: Name in the module -> what the parameter begins with.
        buffers: The same for buffers.
        copies: How values and gradients come to and from a GPU.
    """

    def __init__(self, pytorch: Any, module: Any) -> None:
        self._torch = pytorch
        self._module = module
        self.copies = DeviceCopies(pytorch)
        self._tensors = dict(module.named_parameters())
        found = ((name, *_place(module, name)) for name, _ in module.named_buffers())
        # A forward pass may put another tensor in the place of a buffer, so it is found anew each time.
        self._places = {name: (owner, last) for name, owner, last in found
                        if last not in owner._non_persistent_buffers_set}  # fmt: skip
        held_buffers = {name: getattr(owner, last) for name, (owner, last) in self._places.items()}
        for name, tensor in (*self._tensors.items(), *held_buffers.items()):
            _check(pytorch, name, tensor)
        self.parameters = {
            name: Parameter(_copied(tensor), bool(tensor.requires_grad)) for name, tensor in self._tensors.items()
        }
        self.buffers = {name: Parameter(_copied(held), False) for name, held in held_buffers.items()}
        first = next(iter(self._tensors.values()), None)
        self._device = pytorch.device("cpu") if first is None else first.device

    def evaluate(
        self, loss: Callable[..., Any], training: bool, values: Sequence[Array], wanted: tuple[int, ...]
    ) -> Evaluation:
        """Give the loss, the gradients by the sources at the wanted positions, and the buffers."""
        torch = self._torch
        # In training the module stays as its user has set it.
        mode = contextlib.nullcontext() if training else in_eval(self._module)
        with mode, torch.set_grad_enabled(bool(wanted)):
            tensors = [*self._tensors.values(), *self._buffers()]
            for tensor, value in zip(tensors, values, strict=False):
                self._set(tensor, value)
            for position, value in enumerate(values[len(tensors) :], len(tensors)):
                # A copy, which the module may write into.
                tensor = torch.from_numpy(np.array(value)).to(self._device)
                tensors.append(tensor.requires_grad_(position in wanted))
            result = torch.as_tensor(loss(self._module, *tensors[len(self._tensors) + len(self._places) :]))
            gradients: list[Array] = []
            unused: list[int] = []
            if wanted and not result.shape:
                sources = [tensors[i] for i in wanted]
                found = torch.autograd.grad(result, sources, allow_unused=True)
                gradients = self._to_host(found, [values[i] for i in wanted])
                unused = [at for at, grad in enumerate(found) if grad is None]
            updates = [_copied(buffer) for buffer in self._buffers()] if training else []
        return Evaluation(_on_host(result), gradients, updates, unused)

    def _to_host(self, found: Sequence[Any], values: Sequence[Array]) -> list[Array]:
        """Give gradients as arrays like their values; those of a GPU are all on their way before one is waited for."""
        arriving = [
            self.copies.begin(grad.to_dense() if grad.is_sparse else grad)
            if grad is not None and self.copies.serves(grad)
            else None
            for grad in found
        ]
        return [
            _gradient(grad if arrived is None else arrived(), value)
            for grad, arrived, value in zip(found, arriving, values, strict=True)
        ]

    def _buffers(self) -> list[Any]:
        return [getattr(owner, name) for owner, name in self._places.values()]

    def _set(self, tensor: Any, value: Array) -> None:
        if self.copies.serves(tensor):
            self.copies.put(tensor, value)
        elif tensor.device.type == "cpu" and _dtype_of(tensor) not in HALVES:
            np.copyto(tensor.detach().numpy(), value)
        else:
            tensor.detach().copy_(self._torch.tensor(value))


@contextlib.contextmanager
def in_eval(module: Any) -> Iterator[None]:
    """Put all of a module into `eval()` for a while."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _place(module: Any, name: str) -> tuple[Any, str]:
    """Give the module that holds a buffer, and its name there."""
    path, _, last = name.rpartition(".")
    return module.get_submodule(path), last


def _check(pytorch: Any, name: str, tensor: Any) -> None:
    if pytorch.nn.parameter.is_lazy(tensor):
        raise ValueError(f"{name!r} of the module has no shape yet: call the module once first.")
    if tensor.is_meta:
        raise ValueError(
            f"{name!r} of the module is on the device 'meta' and has no values: give them first, for example with "
            "module.to_empty(device='cpu') and its reset_parameters()."
        )
    dtype = _dtype_of(tensor)
    if dtype not in (*DTYPES, *HALVES):
        raise TypeError(
            f"The parameter servers cannot hold {name!r}: it has dtype {dtype}, and they hold "
            f"{', '.join(DTYPES)}. Convert it first, for example with module.float()."
        )


def _dtype_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _on_host(tensor: Any) -> Array:
    """Give a tensor as an array, bfloat16 and float16 as float32; of torch's own memory where it may be."""
    held = tensor.detach().cpu()
    found: Array = (held.float() if _dtype_of(held) in HALVES else held).numpy()
    return found


def _copied(tensor: Any) -> Array:
    return np.array(_on_host(tensor))


def _gradient(grad: Any, value: Array) -> Array:
    """Give a gradient as an array over torch's own memory."""
    if grad is None:
        return np.zeros_like(value)
    return _on_host(grad.to_dense() if grad.is_sparse else grad).astype(value.dtype, copy=False)


class DeviceCopies:
    """Copies between arrays and the tensors of a GPU, through page-locked memory, of a PyTorch with CUDA.

    Args:
        pytorch: PyTorch.
    """

    def __init__(self, pytorch: Any) -> None:
        self._torch = pytorch

    def serves(self, tensor: Any) -> bool:
        """Say whether a tensor is on a device that this is for."""
        return bool(tensor.device.type == "cuda")

    def put(self, tensor: Any, value: Array) -> None:
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
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(tensor.device))

        def arrived() -> Any:
            event.synchronize()
            return host

        return arrived

    def _page_locked(self, tensor: Any) -> Any:
        return self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
