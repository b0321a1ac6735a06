"""Losses that another framework computes, together with their gradients, as one node of the graph.

What `gs.torch`, `gs.jax` and `gs.py_loss` share. Where a gradient is asked for, the framework gives the loss and its
gradients in one evaluation, and the chain rule takes over from there, so the loss can be added to others, scaled and
clipped. Where none is, only the loss is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DType
from globalstep.errors import InvalidArgumentError
from globalstep.runtime.memory import seal
from globalstep.tf1.gradients.registry import gradient_of, saved
from globalstep.tf1.graph.graph import Node, tuple_item
from globalstep.tf1.graph.kernels import computes, saving_kernel_of
from globalstep.tf1.ops.array_ops import stop_gradient
from globalstep.tf1.ops.gradient_ops import is_ones
from globalstep.worker.frameworks.training_model import Array, Evaluator


class LossNode(Node):
    """The loss of a model of another framework, as `gs.torch`, `gs.jax` and `gs.py_loss` give it.

    Attributes:
        variables: The Variables of the model: for `gs.torch` by the names in the module, for `gs.jax` in the
            structure of the parameters, for `gs.py_loss` as they were given.
    """

    variables: Any


def loss_node(
    evaluate: Evaluator,
    sources: Sequence[tuple[Node, bool]],
    *,
    op_type: str,
    variables: Any,
    updates: Sequence[Node] = (),
) -> tuple[LossNode, list[Node]]:
    """Make the nodes of a foreign loss, under the current name scope.

    Args:
        evaluate: The framework.
        sources: The nodes whose values it gets, each with whether gradients go through to it.
        op_type: Kind of the node that evaluates.
        variables: See LossNode.
        updates: Nodes that each of `Evaluation.updates` is a new value of.

    Returns:
        The loss, float32 unless the sources are of another floating dtype, and a node for each update.
    """
    dtype = next((node.dtype.as_numpy_dtype for node, _ in sources if node.dtype.is_floating), np.float32)
    inputs = [node if differentiable else stop_gradient(node) for node, differentiable in sources]

    def evaluated(values: Sequence[Any], wanted: tuple[int, ...]) -> tuple[tuple[Any, ...], Mapping[int, Array]]:
        try:
            evaluation = evaluate([np.asarray(value) for value in values], wanted)
        except Exception as error:
            # Also where the gradients are what is evaluated: it is the program's own, not that of a node.
            error.__dict__["of_program"] = True
            raise
        loss = np.asarray(evaluation.loss)
        if loss.shape:
            raise InvalidArgumentError(
                f"The loss {item.op_name!r} must be a scalar; its function gave a value of shape {loss.shape}. "
                "Take the mean or the sum."
            )
        gradients = [*evaluation.gradients] if wanted else []
        # The memory may be the framework's: a fetch of it gets a copy.
        seal(gradients)
        return (loss.astype(dtype, copy=False), *evaluation.updates), dict(zip(wanted, gradients, strict=True))

    #: Places of the inputs that gradients were asked for.
    wanted: set[int] = set()
    node = Node(
        op_type, inputs, fn=lambda *values: evaluated(values, ())[0], name="evaluate", stateful=True,
        attrs={"tuple": True, "wanted": wanted, "keep": lambda *values: evaluated(values, tuple(sorted(wanted)))},
    )  # fmt: skip
    item = LossNode("TupleItem", (node,), name="loss", dtype=dtype, shape=(), attrs={"index": 0})
    item.variables = variables
    update_nodes = [
        tuple_item(node, i + 1, name="update", dtype=updated.dtype, shape=updated.shape)
        for i, updated in enumerate(updates)
    ]
    return item, update_nodes


@saving_kernel_of("JaxLoss", "PyLoss", "TorchLoss")
def _keeping(node: Node) -> Any:
    return node.attrs["keep"]


@gradient_of("JaxLoss", "PyLoss", "TorchLoss")
def _loss_gradient(node: Node, grads: Sequence[Node | None]) -> Sequence[Node | None]:
    weight, wanted = grads[0], sorted(node.attrs["wanted"])
    if weight is None:
        return [None] * len(node.inputs)
    sources = [node.inputs[at] for at in wanted]
    # That it has no gradient itself is seen by the loss's own inputs, which are the last.
    first = (saved(node),) if is_ones(weight) else (saved(node), weight)
    attrs = {"places": wanted, "dtypes": [source.dtype for source in sources], "scales": len(first) == 2}
    found = Node("LossGrad", (*first, *node.inputs), attrs={"tuple": True, **attrs})
    items = [tuple_item(found, at, dtype=source.dtype, shape=source.shape) for at, source in enumerate(sources)]
    by_place = dict(zip(wanted, items, strict=True))
    return [by_place.get(at) for at in range(len(node.inputs))]


@computes("LossGrad")
def _scaled(
    found: Mapping[int, Array], g: Any, *_: Any, places: Sequence[int], dtypes: Sequence[DType], scales: bool
) -> tuple[Array, ...]:  # fmt: skip
    parts = tuple(found[at].astype(kind.as_numpy_dtype, copy=False) for at, kind in zip(places, dtypes, strict=True))
    # The very arrays where the loss is what is minimized, without a copy.
    return tuple(part.dtype.type(g) * part for part in parts) if scales and g != 1 else parts
