"""gs.torch: a loss that PyTorch computes, with the parameters and buffers of a module as its Variables.

Layer: worker. PyTorch is imported when it is used. Threads: a module holds the values of one run at a time, so
each evaluation holds the module's lock from setting its parameters to taking its gradients.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.graph.graph import GraphKeys, add_to_collection, as_node, get_default_graph
from globalstep.tf1.variables.assignments import assign
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.codec import DTYPES
from globalstep.worker.frameworks.foreign_loss import HALVES, Array, Evaluation, LossNode, loss_node, require_extra
from globalstep.worker.frameworks.torch_copies import DeviceCopies

__all__ = ["TorchModel", "TorchNames", "torch", "torch_loss"]


def torch_loss(
    module: Any,
    loss: Callable[..., Any],
    inputs: Sequence[Any] = (),
    *,
    name: str | None = None,
    training: bool = True,
) -> LossNode:
    """Make a loss of a `torch.nn.Module` and a function of it.

    Args:
        module: Its parameters become Variables, trainable where they require gradients, and so do the
            buffers of its state dict, not trainable; named as in the module ("model/0.weight"), with their
            present values as initial values. A module used before in this graph keeps its Variables.
        loss: Called as `loss(module, *inputs)` with tensors; gives a scalar tensor.
        inputs: Nodes whose values it needs, for example placeholders. Gradients flow on to floating ones.
        name: Name scope of the Variables and nodes; default "model".
        training: Whether this loss is for training. If not, the module is in `eval()` while it is computed,
            and its buffers stay as they are.

    Returns:
        The loss: a scalar node. One evaluation gives loss and gradients, which are pushed from torch's
        memory without a copy; a parameter that the run did not use gets zeros. Its `variables` are a
        dict by the names in the module.

        A run sets the module's parameters to the values it has read, in place, and leaves them there. Of bfloat16
        and float16 parameters and buffers the Variables are float32; the module holds their rounded values.
        Where forward passes change buffers (BatchNorm), the assigns that push the new values are in
        `GraphKeys.UPDATE_OPS`; run them with the train op, and they are part of its push.

    Raises:
        ImportError: If PyTorch is not installed.
        TypeError: If a parameter has a dtype that no Variable can have, such as an 8-bit float.
        ValueError: If the module is lazy and not initialized yet.
    """
    pytorch = require_extra("torch", "gs.torch", "torch")
    graph = get_default_graph()
    models: dict[Any, TorchModel] = graph.extras.setdefault(__name__, {})
    with graph.name_scope(name or "model"):
        if module not in models:
            models[module] = TorchModel(pytorch, module)
        model = models[module]
        nodes = [as_node(item) for item in inputs]
        sources = [
            *((variable, variable.trainable) for variable in model.parameters.values()),
            *((variable, False) for variable in model.buffers.values()),
            *((node, node.dtype.is_floating) for node in nodes),
        ]
        changed = list(model.buffers.values()) if training else []
        variables = {**model.parameters, **model.buffers}
        node, updates = loss_node(
            lambda values, wanted: model.evaluate(loss, training, values, wanted),
            sources,
            op_type="TorchLoss",
            variables=variables,
            updates=changed,
        )
        for variable, update in zip(changed, updates, strict=True):
            add_to_collection(GraphKeys.UPDATE_OPS, assign(variable, update))
    return node


class TorchModel:
    """A module, its Variables, and how values come in and gradients go out.

    Args:
        pytorch: PyTorch.
        module: The module.

    Attributes:
        parameters: Name in the module -> Variable.
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
        kept = {name: getattr(owner, last) for name, (owner, last) in self._places.items()}
        for name, tensor in (*self._tensors.items(), *kept.items()):
            _check(pytorch, name, tensor)
        self.parameters = {
            name: Variable(_copied(tensor), trainable=tensor.requires_grad, name=name)
            for name, tensor in self._tensors.items()
        }
        self.buffers = {name: Variable(_copied(held), trainable=False, name=name) for name, held in kept.items()}
        first = next(iter(self._tensors.values()), None)
        self._device = pytorch.device("cpu") if first is None else first.device
        # Guards the values in the module and its mode. The user's function is called under it, since it is
        # what uses them; nothing else is taken there.
        self._lock = threading.Lock()

    def evaluate(
        self, loss: Callable[..., Any], training: bool, values: Sequence[Array], wanted: tuple[int, ...]
    ) -> Evaluation:
        """Give the loss, the gradients by the sources at the wanted positions, and the buffers."""
        torch = self._torch
        with self._lock, self._mode(training), torch.set_grad_enabled(bool(wanted)):
            tensors = [*self._tensors.values(), *self._buffers()]
            for tensor, value in zip(tensors, values, strict=False):
                self._set(tensor, value)
            for position, value in enumerate(values[len(tensors) :], len(tensors)):
                # A copy, which the module may write into.
                tensor = torch.from_numpy(np.array(value)).to(self._device)
                tensors.append(tensor.requires_grad_(position in wanted))
            result = torch.as_tensor(loss(self._module, *tensors[len(self._tensors) + len(self._places) :]))
            gradients: list[Array] = []
            if wanted and not result.shape:
                sources = [tensors[i] for i in wanted]
                found = torch.autograd.grad(result, sources, allow_unused=True)
                gradients = self._to_host(found, [values[i] for i in wanted])
            updates = [_copied(buffer) for buffer in self._buffers()] if training else []
        return Evaluation(_on_host(result), gradients, updates)

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
    def _mode(self, training: bool) -> Iterator[None]:
        """Leave the module as its user has set it, or put all of it into `eval()` for a while."""
        if training:
            yield
            return
        modes = [(part, part.training) for part in self._module.modules()]
        self._module.eval()
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
        raise ValueError(f"{name!r} of the module has no shape yet: call the module once before gs.torch.")
    if tensor.is_meta:
        raise ValueError(
            f"{name!r} of the module is on the device 'meta' and has no values: give them first, for example with "
            "module.to_empty(device='cpu') and its reset_parameters()."
        )
    dtype = _dtype_of(tensor)
    if dtype not in (*DTYPES, *HALVES):
        raise TypeError(
            f"gs.torch cannot make a Variable of {name!r}: it has dtype {dtype}, and a Variable is one of "
            f"{', '.join(DTYPES)}. Convert the module first, for example with module.float()."
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


class TorchNames:
    """What `gs.torch` is: called, it makes a loss of a module; its `Embedding` is a table on the parameter servers.

    It stands for the module `globalstep.torch` too, so that `from globalstep.torch import Embedding` works.
    """

    __name__ = "torch"

    def __init__(self) -> None:
        self.__doc__ = torch_loss.__doc__

    def __call__(
        self,
        module: Any,
        loss: Callable[..., Any],
        inputs: Sequence[Any] = (),
        *,
        name: str | None = None,
        training: bool = True,
    ) -> LossNode:
        """Make a loss of a module; see `torch_loss`."""
        return torch_loss(module, loss, inputs, name=name, training=training)

    @property
    def Embedding(self) -> Any:  # noqa: N802 (a class)
        """`globalstep.worker.frameworks.torch_embedding.Embedding`, for the modules of `gs.fit`."""
        return importlib.import_module("globalstep.worker.frameworks.torch_embedding").Embedding

    @property
    def EmbeddingBag(self) -> Any:  # noqa: N802 (a class)
        """`globalstep.worker.frameworks.torch_embedding.EmbeddingBag`, for the modules of `gs.fit`."""
        return importlib.import_module("globalstep.worker.frameworks.torch_embedding").EmbeddingBag


#: `gs.torch`.
torch = TorchNames()
