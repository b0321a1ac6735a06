"""Gradient plan: the nodes that a gradient goes through, found once when it is asked for.

Layer: tf1. What a session does with it: `globalstep.tf1.gradients.gradients`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from globalstep.tf1.gradients.vjps import vjp_of
from globalstep.tf1.graph.graph import Node, closure_of, tuple_item
from globalstep.tf1.graph.indexed_slices import IndexedSlices

__all__ = ["GradientPlan"]


def _is_float(node: Node) -> bool:
    """Whether a gradient can go through the value; a tuple is decided by its items."""
    return node.attrs.get("tuple", False) or (not node.is_operation and node.dtype.is_floating)


class GradientPlan:
    """The nodes on the tape of one Gradients node, and what they need.

    Args:
        ys: What is differentiated.
        xs: What it is differentiated by.
        seeds: The weight of each y; None for ones.
        stops: Nodes taken as constants.

    Attributes:
        reached: Nodes that a gradient of ys reaches.
        flows: For each of them, the inputs to which it goes on, as keys in their order: there may be thousands.
        gathers: For each Variable whose gradient is sparse, the gathers that read its rows.
        covers: Nodes to evaluate on the tape, in order.
        needs: Nodes whose values they need.
        vjps: The VJPs of those among them that have one, and that a gradient goes on from.

    Raises:
        LookupError: If a function on the way has no gradient.
    """

    def __init__(self, ys: list[Node], xs: list[Node], seeds: list[Node | None], stops: Sequence[Node]) -> None:
        self.ys, self.xs, self.seeds = ys, xs, seeds
        self.stops = set(stops)
        self._ends = set(ys)
        position = {node: i for i, node in enumerate(ys[0].graph.nodes)} if ys else {}
        ancestors = sorted(closure_of(ys, attrgetter("inputs")), key=position.__getitem__)
        wanted = set(xs)
        # Forward: what depends on xs at all, and what a gradient could flow to.
        depends: set[Node] = set()
        carries: set[Node] = set()
        for node in ancestors:
            if node in wanted or any(source in depends for source in node.inputs):
                depends.add(node)
            if (node in wanted and _is_float(node)) or self._inlets(node, carries):
                carries.add(node)
        # Backward: what a gradient reaches from ys.
        reached = {y for y in ys if y in carries}
        for node in reversed(ancestors):
            if node in reached:
                inlets = self._inlets(node, carries)
                if inlets and node.attrs.get("no_gradient"):
                    raise LookupError(f"No gradient defined for operation '{node.op_name}' (op type: {node.op_type})")
                reached.update(inlets)
        self.reached = reached
        self.flows = {node: dict.fromkeys(self._inlets(node, carries)) for node in ancestors if node in reached}
        readers: dict[Node, list[Node]] = {}
        for node, goes_on in self.flows.items():
            for source in goes_on:
                readers.setdefault(source, []).append(node)
        self.gathers = {x: reads for x in dict.fromkeys(xs) if (reads := self._sparse_reads(x, readers.get(x, ())))}
        rows = dict.fromkeys(gather for reads in self.gathers.values() for gather in reads)
        self.covers = tuple(
            node
            for node in ancestors
            if node not in rows
            and (node.fn is not None or node.op_type == "Gradients")
            and any(source in depends for source in node.inputs)
        )
        self.needs = tuple(self._needs(rows))
        self.vjps = {node: vjp for node in self.covers if self.flows.get(node) and (vjp := vjp_of(node.fn))}

    def _inlets(self, node: Node, carries: set[Node]) -> tuple[Node, ...]:
        """The inputs of `node` to which a gradient of its value goes on."""
        if (
            node in self.stops
            or node.attrs.get("stops_gradient")
            or (node.fn is None and node.op_type != "Gradients")
            or not any(source in carries for source in node.inputs)
            or not _is_float(node)
        ):
            return ()
        return tuple(source for source in node.inputs if source in carries)

    def _sparse_reads(self, x: Node, readers: Sequence[Node]) -> tuple[Node, ...]:
        """The gathers of a Variable, if the gradient reaches it through nothing else."""
        if x.op_type != "VariableV2" or x in self._ends or x not in self.reached:
            return ()
        only_rows = all(
            node.op_type == "GatherV2" and node.inputs[0] is x and node.attrs.get("axis", 0) == 0 for node in readers
        )
        return tuple(readers) if only_rows else ()

    def _needs(self, rows: Iterable[Node]) -> list[Node]:
        covered = set(self.covers)
        needs: dict[Node, None] = {}
        for node in self.covers:
            sources = (*node.inputs, *node.control_inputs, *node.attrs.get("needs", ()))
            needs.update(dict.fromkeys(source for source in sources if source not in covered))
        needs.update(dict.fromkeys(x for x in self.xs if x in self.reached and x not in self.gathers))
        for gather in rows:
            needs.update({gather: None, gather.inputs[1]: None})
        needs.update(dict.fromkeys(y for y in self.ys if y in self.reached))
        needs.update(dict.fromkeys(seed for seed in self.seeds if seed is not None))
        return [node for node in needs if node not in covered]

    def build(self) -> list[Any]:
        """Add the Gradients node and the nodes that take it apart."""
        if not any(x in self.reached for x in self.xs):
            return [None] * len(self.xs)
        node = Node(
            "Gradients",
            (*self.ys, *(seed for seed in self.seeds if seed is not None)),
            name="Gradients",
            attrs={
                "tuple": True,
                "plan": self,
                "needs": self.needs,
                "covers": self.covers,
                "no_gradient": any(reached.attrs.get("no_second_gradient") for reached in self.flows),
            },
        )
        results: list[Any] = []
        index = 0
        for x in self.xs:
            name = f"{x.op_name.rsplit('/', 1)[-1]}_grad"
            if x not in self.reached:
                results.append(None)
            elif x in self.gathers:
                shape = x.shape
                rows = [None, *shape.as_list()[1:]]
                values = tuple_item(node, index, name=f"{name}_values", dtype=x.dtype, shape=rows)
                ids = tuple_item(node, index + 1, name=f"{name}_indices", dtype="int64", shape=[None])
                results.append(IndexedSlices(values, ids, tuple(int(size) for size in shape)))
                index += 2
            else:
                results.append(tuple_item(node, index, name=name, dtype=x.dtype, shape=x.shape))
                index += 1
        return results
