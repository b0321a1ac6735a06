"""The registry of gradients: for each kind of node, the rule that makes the nodes of its gradient.

A rule stands beside the op that it belongs to, and is found by the op's type:

    @gradient_of("MatMul")
    def _matmul_gradient(node, grad):
        a, b = node.inputs
        return matmul(grad, b, transpose_b=True), matmul(a, grad, transpose_a=True)

* `rule(node, grad)` gets the node and the gradient node of its value. It returns one entry for each of `node.inputs`: a
  node, or None where no gradient flows. The entry of a Variable may be IndexedSlices. What is not needed is not
  evaluated, so a rule need not ask which inputs want a gradient; inputs that are no floating numbers get None.
* A node with several values (`attrs["tuple"]`) gets `rule(node, grads)`: a list with an entry for each item that the
  graph takes out of it (`tuple_item`), up to the last of these; None where no gradient comes back to that item. An item
  by itself has no rule.
* A rule makes ordinary nodes, from public ops or by ops of its own that have rules themselves: so the gradient of a
  gradient works by itself. What a kernel's value and its gradient have in common is saved by `saved`.
* `no_gradient` says that a kind of node lets no gradient through: it is None beyond it. A floating node with a function
  and neither a rule nor this is an error where a gradient would flow: "No gradient defined for operation".

Layer: tf1, below every module of `ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.kernels import kernel_of, saving_function_of

Rule = Callable[[Node, Any], Sequence[Any]]
_Rule = TypeVar("_Rule", bound=Rule)

_rules: dict[str, Rule] = {}
_none: set[str] = set()


def gradient_of(*op_types: str) -> Callable[[_Rule], _Rule]:
    """Register the decorated function as the rule of these kinds of nodes; see the module's text."""

    def register(rule: _Rule) -> _Rule:
        _rules.update(dict.fromkeys(op_types, rule))
        return rule

    return register


def no_gradient(*op_types: str) -> None:
    """State that no gradient goes through these kinds of nodes."""
    _none.update(op_types)


def _kind(node: Node) -> str:
    """Return the op type whose gradient a node has: its own, or another by `Graph.gradient_override_map`."""
    kind: str = node.attrs.get("_gradient_op_type", node.op_type)
    return kind


def rule_of(node: Node) -> Rule | None:
    """Return the rule of a node; None if it has none."""
    return _rules.get(_kind(node))


def has_no_gradient(node: Node) -> bool:
    """Return whether no gradient goes through a node."""
    if "_gradient_op_type" not in node.attrs and node.attrs.get("stops_gradient"):
        return True
    return _kind(node) in _none


def composed(definition: Callable[[Node], Node | Sequence[Node | None]]) -> Rule:
    """Return the rule of a node whose value other ops can give: it is differentiated through these.

    Args:
        definition: Makes the same value from a node's inputs and attributes; of a tuple, a list of its items.
    """

    def rule(node: Node, grad: Any) -> Sequence[Any]:
        from globalstep.tf1.gradients.gradients import flow_back

        made = definition(node)
        pairs = [(made, grad)] if isinstance(made, Node) else list(zip(made, grad, strict=False))
        ends = [(y, weight) for y, weight in pairs if y is not None and weight is not None]
        parts = flow_back([y for y, _ in ends], node.inputs, [weight for _, weight in ends], node.inputs)
        # What is an input twice gets its gradient once.
        return [
            part if node.inputs.index(x) == at else None
            for at, (x, part) in enumerate(zip(node.inputs, parts, strict=True))
        ]

    return rule


def saved(node: Node) -> Node:
    """Return a node for what a kernel has found on its way, for the gradient's kernel.

    A run evaluates both by one call where it needs both (`saving_kernel_of`), and by the node's own function where it
    does not.

    Args:
        node: The node.
    """
    made = node.attrs.get("saved")
    if made is None:
        made = node.attrs["saved"] = Node(
            "Saved", node.inputs, name="Saved", attrs={"of": node}, stateful=node.stateful,
            control_inputs=node.control_inputs,
        )  # fmt: skip
    return made


@kernel_of("Saved")
def _saved(node: Node) -> Callable[..., Any]:
    both = saving_function_of(node.attrs["of"])
    return lambda *values: both(*values)[1]


no_gradient("Saved", "StopGradient")
