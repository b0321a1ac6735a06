"""Parameters of distributions: as nodes of one dtype, logits beside probabilities, and checks of them."""

from __future__ import annotations

from typing import Any

from globalstep.tf1.graph.graph import Node, name_scope
from globalstep.tf1.ops.building import operand_list
from globalstep.tf1.ops.constant_ops import convert_to_tensor, ones_like
from globalstep.tf1.ops.control_flow_ops import assert_positive, with_dependencies
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.math_ops import expm1, log, log1p, logical_and, sigmoid
from globalstep.tf1.ops.nn_ops import softmax


def floats(*values: Any) -> list[Node]:
    """Give parameters as nodes of one floating dtype: that of the first node among them.

    Raises:
        ValueError: If they are of integers, with TensorFlow's text.
        TypeError: If nodes have several dtypes.
    """
    nodes = operand_list("Distribution", values, "parameters")
    for node in nodes:
        if not node.dtype.is_floating:
            raise ValueError(f"Expected floating point type, got {node.dtype.name} of {node.name!r}.")
    return nodes


def positive(validate_args: bool, *nodes: Node) -> list[Node]:
    """Give nodes; with `validate_args`, runs fail where a value is not above 0."""
    return [with_dependencies([assert_positive(node)], node) if validate_args else node for node in nodes]


def logits_and_probs(logits: Any, probs: Any, multidimensional: bool) -> tuple[Node, Node]:
    """Give logits and probabilities from the one of them that the program passes.

    Args:
        logits: Logits (log-odds), or None.
        probs: Probabilities, or None.
        multidimensional: Whether those of the last axis are of one distribution, and sum up to 1.

    Raises:
        ValueError: If both or neither is given, with TensorFlow's text.
    """
    if (probs is None) == (logits is None):
        raise ValueError("Must pass probs or logits, but not both.")
    (node,) = floats(convert_to_tensor(logits if probs is None else probs))
    if probs is None:
        return node, softmax(node) if multidimensional else sigmoid(node)
    return log(node) if multidimensional else log(node) - log1p(-node), node


def softplus_inverse(x: Any, name: str | None = None) -> Node:
    """Give the number whose softplus is `x`: log(exp(x) - 1).

    Args:
        x: Floating node or array, above 0.
        name: Name scope of the nodes; default "softplus_inverse".
    """
    with name_scope(name or "softplus_inverse"):
        (node,) = floats(convert_to_tensor(x))
        return node + log(-expm1(-node))


def where_defined(allow_nan_stats: bool, value: Node, *limits: tuple[Node, float]) -> Node:
    """Give a statistic where each parameter is above its limit, and NaN elsewhere.

    Args:
        allow_nan_stats: False to have the run fail instead of giving NaN.
        value: The statistic.
        limits: Parameters of the shape of `value` and what each must be above.
    """
    if not allow_nan_stats:
        checks = [assert_positive(node - limit) for node, limit in limits]
        checked: Node = with_dependencies(checks, value)
        return checked
    holds = limits[0][0] > limits[0][1]
    for node, limit in limits[1:]:
        holds = logical_and(holds, node > limit)
    return where(holds, value, ones_like(value) * float("nan"))
