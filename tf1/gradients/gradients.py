"""Gradients of nodes, which are nodes: made by the rules of the registry, from the ends back.

Terms add up in the order in which the way back meets them. What is made reads a Variable as the node does that it is
the gradient of: in the same cut, after what that waits for.

Layer: tf1. Threads: a graph is built by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from globalstep.errors import InternalError
from globalstep.tf1.gradients.registry import has_no_gradient, rule_of
from globalstep.tf1.graph.graph import Node, as_node, closure_of, get_default_graph
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.mutations import Mutation
from globalstep.tf1.ops.gradient_ops import add_terms, ones, sum_of_slices


class AggregationMethod:
    """Methods of summing the terms of a gradient. All give the same sum here: terms are added as they come."""

    ADD_N = 0
    DEFAULT = 0
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
    stop_gradients: Any = None,
) -> list[Any]:
    """Give the derivatives of the sum of `ys` with respect to each of `xs`.

    Args:
        ys: Node or list of nodes to differentiate; the derivatives of all their elements are summed.
        xs: Node or list of nodes (Variables, placeholders, any value) to differentiate by.
        grad_ys: What each y weighs in the sum: a list as long as `ys`, of arrays or nodes of the shapes
            of the ys, or None for ones.
        name: Name scope of the nodes added.
        colocate_gradients_with_ops: Accepted; a worker computes all gradients where it runs.
        gate_gradients: Accepted; one evaluation gives all gradients, so none is used before the others
            are there.
        aggregation_method: A constant of `AggregationMethod`; accepted, see there.
        stop_gradients: Node or list of nodes to take as constants.

    Returns:
        One entry for each x: a node of its dtype and shape; IndexedSlices where x is a Variable that
        `ys` use only through `gs.gather` or `gs.nn.embedding_lookup`; None where `ys` do not depend on
        x, or not in a differentiable way.

    Raises:
        LookupError: If a function between `xs` and `ys` has no gradient.
        ValueError: If `grad_ys` does not fit `ys`, or the aggregation method is unknown.
    """
    if aggregation_method is not None and aggregation_method not in (0, 1, 2):
        raise ValueError(f"Invalid aggregation_method specified {aggregation_method}.")
    y_nodes, x_nodes = _nodes(ys), _nodes(xs)
    if grad_ys is None:
        seeds: list[Node | None] = [None] * len(y_nodes)
    else:
        grads = list(grad_ys) if isinstance(grad_ys, (list, tuple)) else [grad_ys]
        if len(grads) != len(y_nodes):
            raise ValueError(f"Passed {len(grads)} grad_ys for {len(y_nodes)} ys")
        seeds = [_seed(g, y) for g, y in zip(grads, y_nodes, strict=True)]
    graph = y_nodes[0].graph if y_nodes else get_default_graph()
    stops = _nodes(stop_gradients)
    with graph.as_default(), graph.name_scope(name):
        made = _Flow(y_nodes, x_nodes, stops).back(y_nodes, seeds) if y_nodes else [None] * len(x_nodes)
        return [_after_control_inputs(grad) for grad in made] if graph.current_control_inputs() else made


def _after_control_inputs(grad: Any) -> Any:
    """Return a gradient that waits for what the program orders it after; what it is made of does not."""
    if isinstance(grad, IndexedSlices):
        return IndexedSlices(_after_control_inputs(as_node(grad.values)), grad.indices, grad.dense_shape)
    if grad is None:
        return None
    return Node("Identity", (grad,), dtype=grad.dtype, shape=grad.shape)


def flow_back(
    ys: Sequence[Node], xs: Sequence[Node], seeds: Sequence[Node | None], stops: Sequence[Node] = ()
) -> list[Any]:
    """Make the nodes of the gradients of ys by xs, in the current name scope.

    Args:
        ys: What is differentiated.
        xs: What it is differentiated by.
        seeds: The weight of each y; None for ones.
        stops: Nodes taken as constants.

    Returns:
        For each x a node, IndexedSlices or None.

    Raises:
        LookupError: If a function on the way has no gradient.
    """
    if not ys:
        return [None] * len(xs)
    return _Flow(ys, xs, stops, ys[0].graph.current_control_inputs()).back(ys, seeds)


class _Flow:
    """The way of a gradient through the graph.

    Args:
        ys: What is differentiated.
        xs: What it is differentiated by.
        stops: Nodes taken as constants.
        first: What must have run before all that is made.

    Attributes:
        reached: The nodes that a gradient of ys reaches.
        after: For each node, what must have run before its inputs are read: gradients may read them again.
    """

    def __init__(
        self, ys: Sequence[Node], xs: Sequence[Node], stops: Sequence[Node], first: tuple[Node, ...] = ()
    ) -> None:
        self._xs, self._stops = xs, set(stops)
        self._graph = ys[0].graph
        within = closure_of(ys, lambda node: () if node in self._stops else node.inputs)
        self._ancestors = [node for node in self._graph.nodes if node in within]
        wanted = set(xs)
        self._carries: set[Node] = set()
        self.after: dict[Node, tuple[Node, ...]] = {}
        for node in self._ancestors:
            if (node in wanted and _is_float(node)) or self._inlets(node):
                self._carries.add(node)
            own = (*node.control_inputs, node) if isinstance(node, Mutation) else node.control_inputs
            before = [after for source in node.inputs if (after := self.after.get(source))]
            self.after[node] = tuple(dict.fromkeys(chain(first, *before, own))) if before or own else first
        self.reached = {y for y in ys if y in self._carries}
        for node in reversed(self._ancestors):
            if node in self.reached:
                self.reached.update(self._inlets(node))
        #: The nodes on the way that have no rule, or were imported without what computes them.
        self.missing = [
            node for node in reversed(self._ancestors)
            if node in self.reached and node.op_type != "TupleItem" and self._inlets(node)
            and (rule_of(node) is None or "missing" in node.attrs)
        ]  # fmt: skip
        #: For each reached node the terms of its gradient; of a tuple, by the place of the item.
        self._terms: dict[Node, list[Any]] = {}
        self._items: dict[Node, dict[int, list[Any]]] = {}

    def _inlets(self, node: Node) -> tuple[Node, ...]:
        """Return the inputs to which a gradient of the node goes on."""
        inlets = tuple(source for source in node.inputs if source in self._carries)
        if not inlets or node in self._stops or node.fn is None or has_no_gradient(node) or not _is_float(node):
            return ()
        return inlets

    def add(self, node: Node, term: Any) -> None:
        """Add a term to the gradient of a node."""
        self._terms.setdefault(node, []).append(term)

    def back(self, ys: Sequence[Node], seeds: Sequence[Node | None]) -> list[Any]:
        """Go from the ends back, and return the gradient of each x.

        Raises:
            LookupError: If a function on the way has no gradient.
        """
        for node in self.missing:
            raise LookupError(f"No gradient defined for operation '{node.op_name}' (op type: {node.op_type})")
        with self._graph.control_dependencies(None):
            for y, seed in zip(ys, seeds, strict=True):
                if y in self.reached:
                    with self._graph.control_dependencies(self.after[y]):
                        self.add(y, ones(y) if seed is None else seed)
            return self._back()

    def _back(self) -> list[Any]:
        found: dict[Node, Any] = {}
        wanted = set(self._xs)
        for node in reversed(self._ancestors):
            terms = self._terms.pop(node, None)
            grad: Any = None
            if terms:
                grad = _sum(terms, node)
                if node in wanted:
                    found[node] = grad
            elif node not in self._items:
                continue
            inlets = self._inlets(node)
            if not inlets:
                continue
            if node.op_type == "TupleItem":
                self._items.setdefault(node.inputs[0], {}).setdefault(node.attrs["index"], []).append(grad)
                continue
            items = self._items.pop(node, None)
            if items is not None:
                grad = [_sum(items[at], items[at][0]) if at in items else None for at in range(max(items) + 1)]
            elif isinstance(grad, IndexedSlices):
                grad = as_node(grad)
            self._through(node, grad, set(inlets))
        return [found.get(x) for x in self._xs]

    def _through(self, node: Node, grad: Any, inlets: set[Node]) -> None:
        rule = rule_of(node)
        assert rule is not None
        scope, start = f"{node.op_name.rsplit('/', 1)[-1]}_grad", len(self._graph.nodes)
        with self._graph.name_scope(scope), self._graph.control_dependencies(self.after[node]):
            if "wanted" in node.attrs:
                node.attrs["wanted"].update(at for at, source in enumerate(node.inputs) if source in inlets)
            parts = rule(node, grad)
        for made in self._graph.nodes[start:]:
            if any(source.op_type == "VariableV2" for source in made.inputs):
                made.attrs.setdefault("reads_as", node)
        for source, part in zip(node.inputs, parts, strict=True):
            if part is None or source not in inlets:
                continue
            if part.dtype != source.dtype:
                raise InternalError(
                    f"The gradient of {node.op_name!r} ({node.op_type}) at {source.name!r} has dtype {part.dtype.name}."
                )
            if isinstance(part, Node):
                part.set_shape(source.shape)
            self.add(source, part)


def _is_float(node: Node) -> bool:
    """Whether a gradient can go through the value; a tuple is decided by its items."""
    if node.op_type == "Saved":
        return False
    return bool(node.attrs.get("tuple")) or (not node.is_operation and node.dtype.is_floating)


def _sum(terms: Sequence[Any], node: Node) -> Any:
    if len(terms) == 1:
        return terms[0]
    if all(isinstance(term, IndexedSlices) for term in terms):
        return sum_of_slices(terms)
    return add_terms([as_node(term) for term in terms], node)


def _nodes(values: Any) -> list[Node]:
    if values is None:
        return []
    return [as_node(v) for v in (values if isinstance(values, (list, tuple)) else [values])]


def _seed(grad: Any, y: Node) -> Node | None:
    if grad is None:
        return None
    node = as_node(grad, y.dtype)
    if not node.shape.is_compatible_with(y.shape):
        raise ValueError(
            f"The gradient {node.name!r} given for {y.name!r} has shape {node.shape}, which does not fit {y.shape}."
        )
    return node
