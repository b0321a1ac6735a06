"""Helpers that programs' own cells import from TensorFlow's modules: products of inputs with weights, and sizes.

Layer: tf1. Source: TensorFlow 1.15 `tensorflow/contrib/rnn/python/ops/core_rnn_cell.py`,
`python/ops/rnn_cell_impl.py`.
"""

from __future__ import annotations

from typing import Any

from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.building import sizes_of
from globalstep.tf1.ops.init_ops import zeros_initializer
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.nn_ops import bias_add
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.rnn.sequences import is_cell
from globalstep.tf1.variables.named_variables import get_variable

__all__ = ["_Linear", "_concat", "_like_rnncell", "_linear"]


class _Linear:
    """args @ kernel + bias, whose Variables are made in the current scope.

    Args:
        args: A node [batch, n], or a list of such, which are put side by side.
        output_size: Size of the result.
        build_bias: Whether there is a bias.
        bias_initializer: Of it; default zeros.
        kernel_initializer: Of the kernel; default that of the scope.

    Raises:
        ValueError: If a size is not known.
    """

    def __init__(
        self,
        args: Any,
        output_size: int,
        build_bias: bool,
        bias_initializer: Any = None,
        kernel_initializer: Any = None,
    ) -> None:
        nodes = _listed(args)
        if not nodes:
            raise ValueError("`args` must be specified")
        for node in nodes:
            if node.shape.ndims != 2 or node.shape.as_list()[1] is None:
                raise ValueError(f"linear expects shapes [batch, known size], but saw {node.shape}")
        size = sum(node.shape.as_list()[1] for node in nodes)  # type: ignore[misc]
        kind = nodes[0].dtype
        self._weights = get_variable("kernel", [size, output_size], kind, kernel_initializer)
        self._biases = None
        if build_bias:
            self._biases = get_variable("bias", [output_size], kind, bias_initializer or zeros_initializer(dtype=kind))

    def __call__(self, args: Any) -> Node:
        nodes = _listed(args)
        product = matmul(nodes[0] if len(nodes) == 1 else concat(nodes, 1), self._weights)
        return product if self._biases is None else bias_add(product, self._biases)


def _listed(args: Any) -> list[Node]:
    items = args if isinstance(args, (list, tuple)) else [] if args is None else [args]
    return [as_node(one) for one in items]


def _linear(
    args: Any, output_size: int, bias: bool, bias_initializer: Any = None, kernel_initializer: Any = None
) -> Node:  # fmt: skip
    return _Linear(args, output_size, bias, bias_initializer, kernel_initializer)(args)


def _concat(prefix: Any, suffix: Any, static: bool = False) -> Any:
    """Put sizes one after the other: ints, TensorShapes and nodes; as a list with None for unknown ones if `static`."""
    if static:
        parts = [TensorShape(sizes_of(part) if isinstance(part, Node) else part) for part in (prefix, suffix)]
        whole = parts[0].concatenate(parts[1])
        return None if whole.dims is None else whole.as_list()
    nodes = []
    for part in (prefix, suffix):
        if not isinstance(part, Node) and not TensorShape(part).is_fully_defined():
            raise ValueError(f"Provided a prefix or suffix of None: {prefix} and {suffix}")
        nodes.append(reshape(part, [-1]) if isinstance(part, Node) else as_node(TensorShape(part).as_list(), "int32"))
    return concat(nodes, 0)


#: TensorFlow's own name.
_like_rnncell = is_cell
