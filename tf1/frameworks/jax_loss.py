"""gs.jax: a loss that jax computes, with the leaves of a pytree as its Variables.

Layer: tf1. jax is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.frameworks.foreign_loss import LossNode, loss_node
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph
from globalstep.tf1.variables.variables import Variable
from globalstep.worker.frameworks.jax_values import array_of, half_of
from globalstep.worker.frameworks.training_model import Array, Evaluation, require_extra


def jax_loss(
    params: Any, loss: Callable[..., Any], inputs: Sequence[Any] = (), *, name: str | None = None, jit: bool = True
) -> LossNode:
    """Make a loss of a jax function and a pytree of its parameters.

    Args:
        params: Pytree whose leaves are arrays: each becomes a Variable, with the array as initial value,
            named by its path ("model/dense/kernel"). Integer leaves become Variables that are not trained.
            A leaf may also be a Variable or another node: so `other_loss.variables` shares its Variables.
            Of bfloat16 and float16 leaves the Variables are float32; the function gets rounded values.
        loss: Called as `loss(params, *inputs)` with jax arrays; gives a scalar. A pure function, since
            jax traces it.
        inputs: Nodes whose values it needs, for example placeholders. Gradients flow on to floating ones.
        name: Name scope of the Variables and nodes; default "model".
        jit: Whether jax compiles the function, anew for each shape of the inputs.

    Returns:
        The loss: a scalar node. One evaluation (`jax.value_and_grad`) gives loss and gradients, which
        are pushed from jax's memory without a copy. Its `variables` have the structure of `params`.

    Raises:
        ImportError: If jax is not installed.
        TypeError: If a leaf has a dtype that no Variable can have, such as an 8-bit float.

    64-bit leaves become 32-bit unless jax is configured otherwise (`jax_enable_x64`), as everywhere in jax.
    """
    jax = require_extra("jax", "gs.jax", "jax")
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    with get_default_graph().name_scope(name or "model"):
        variables = [_variable_of(jax, jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
                     for path, leaf in leaves]  # fmt: skip
        sources = [(node, node.dtype.is_floating) for node in (*variables, *map(as_node, inputs))]
        halves = [(None if _is_node(leaf) else half_of(jax, leaf)) for _, leaf in leaves]
        evaluate = _Compiled(jax, structure, halves, loss, jit)
        return loss_node(evaluate, sources, op_type="JaxLoss", variables=structure.unflatten(variables))[0]


def _variable_of(jax: Any, path: str, leaf: Any) -> Any:
    """Make the Variable of an array, named by its path, or give the node that the leaf is.

    Raises:
        TypeError: If it has a dtype that no Variable can have.
    """
    if _is_node(leaf):
        return as_node(leaf)
    array = array_of(jax, path, leaf)
    return Variable(array, trainable=array.dtype.kind == "f", name=path or "params")


def _is_node(leaf: Any) -> bool:
    return isinstance(leaf, Node) or hasattr(leaf, "__node__")


class _Compiled:
    """A function of the flat values, with its gradients by those that are wanted. Thread-safe: jax is."""

    def __init__(
        self, jax: Any, structure: Any, halves: Sequence[str | None], loss: Callable[..., Any], jit: bool
    ) -> None:
        self._jax = jax
        self._structure = structure
        self._halves = halves
        self._loss = loss
        self._prepare: Callable[[Any], Any] = jax.jit if jit else lambda function: function
        self._value = self._prepare(self._flat)
        # Two threads may both prepare one entry: the later one is kept, both are right.
        self._with_gradients: dict[tuple[int, ...], Any] = {}

    def __call__(self, values: Sequence[Array], wanted: tuple[int, ...]) -> Evaluation:
        if not wanted:
            return Evaluation(self._value(*values))
        if wanted not in self._with_gradients:
            self._with_gradients[wanted] = self._prepare(self._jax.value_and_grad(self._flat, argnums=wanted))
        loss, gradients = self._with_gradients[wanted](*values)
        return Evaluation(loss, [np.asarray(gradient) for gradient in gradients])

    def _flat(self, *values: Any) -> Any:
        leaves = [
            value if half is None else value.astype(half) for value, half in zip(values, self._halves, strict=False)
        ]
        return self._loss(self._structure.unflatten(leaves), *values[len(leaves) :])
