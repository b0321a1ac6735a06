"""gs.torch: a loss that PyTorch computes, with the parameters and buffers of a module as its Variables.

Layer: tf1. PyTorch is imported when it is used. Threads: a module holds the values of one run at a time, so
each evaluation holds the module's lock from setting its parameters to taking its gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from globalstep.tf1.frameworks.foreign_loss import LossNode, loss_node
from globalstep.tf1.graph.graph import GraphKeys, add_to_collection, as_node, get_default_graph
from globalstep.tf1.variables.assignments import assign
from globalstep.tf1.variables.variables import Variable
from globalstep.worker.frameworks.torch_module import TorchModule
from globalstep.worker.frameworks.training_model import Array, Evaluation, require_extra


def torch_loss(
    module: Any, loss: Callable[..., Any], inputs: Sequence[Any] = (), *, name: str | None = None, training: bool = True
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
    """A module in a graph, with its Variables.

    Args:
        pytorch: PyTorch.
        module: The module.

    Attributes:
        parameters: Name in the module -> Variable.
        buffers: The same for buffers.
    """

    def __init__(self, pytorch: Any, module: Any) -> None:
        self._module = TorchModule(pytorch, module)
        self.parameters, self.buffers = (
            {name: Variable(held.value, trainable=held.trained, name=name) for name, held in some.items()}
            for some in (self._module.parameters, self._module.buffers)
        )
        # Guards the values in the module and its mode. The user's function is called under it, since it is
        # what uses them; nothing else is taken there.
        self._lock = threading.Lock()

    def evaluate(
        self, loss: Callable[..., Any], training: bool, values: Sequence[Array], wanted: tuple[int, ...]
    ) -> Evaluation:
        """Give the loss, the gradients by the sources at the wanted positions, and the buffers."""
        with self._lock:
            return self._module.evaluate(loss, training, values, wanted)
