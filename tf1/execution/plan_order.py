"""Order of evaluation of the nodes of one round. Pure.

A Gradients node evaluates the nodes that it covers, so it comes before them where that is possible: the
forward pass then runs once for the loss and its gradients.

Layer: tf1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from globalstep.tf1.graph.graph import Node, closure_of

__all__ = ["evaluation_order"]


def evaluation_order(
    nodes: Sequence[Node], rows: Set[Node], reads: Collection[Node]
) -> tuple[list[Node], list[Node], list[Node]]:
    """Order the nodes of a round.

    Args:
        nodes: Nodes to evaluate, in order of creation; what they need beyond these is there already.
        rows: Those of them that read rows of a Variable.
        reads: Variables that the round reads whole.

    Returns:
        What comes before the read, the row reads that are part of the read, and the rest in order, in
        which nodes covered by a Gradients node are left out. Before the read comes what gives the ids of
        rows, and what has an effect but needs nothing that is read: a dequeue may wait for long, and the
        values read before it would have aged meanwhile. A Gradients node evaluates what it covers itself, once.
    """
    mine = set(nodes)
    reading = _reading(nodes, rows, reads)
    at_once = [node for node in nodes if node in rows and node.inputs[1] not in reading]
    early_set = _closure([node.inputs[1] for node in at_once], mine)
    covered = {inner for node in nodes if node.op_type == "Gradients" for inner in node.attrs["covers"]}
    for node in nodes:
        if node.stateful and node not in early_set and node not in covered:
            needed = _closure([node], mine)
            if not needed & reading:
                early_set |= needed
    early = [node for node in nodes if node in early_set]
    return early, at_once, _late(nodes, rows, early_set.union(at_once))


def _reading(nodes: Sequence[Node], rows: Set[Node], reads: Collection[Node]) -> set[Node]:
    readers: set[Node] = set()
    for node in nodes:
        itself = node in rows or node.op_type in ("Gradients", "InitializedValue")
        if itself or any(source in reads or source in readers for source in node.inputs):
            readers.add(node)
    return readers


def _closure(roots: Sequence[Node], within: set[Node]) -> set[Node]:
    return closure_of(within.intersection(roots), lambda node: within & {*node.inputs, *node.control_inputs})


def _late(nodes: Sequence[Node], rows: Set[Node], done: set[Node]) -> list[Node]:
    mine = set(nodes)
    gradients = [node for node in nodes if node.op_type == "Gradients"]
    covered_by: dict[Node, Node] = {}
    for gradient in gradients:
        for node in gradient.attrs["covers"]:
            if node in mine:
                covered_by.setdefault(node, gradient)
    order: list[Node] = []
    started: set[Node] = set()
    for root in nodes:
        waiting = [root]
        while waiting:
            node = waiting[-1]
            if node in done:
                waiting.pop()
                continue
            cover = covered_by.get(node)
            if cover is not None and cover not in started:
                started.add(cover)
                waiting.append(cover)
                continue
            # Where a Gradients node waits for what it could have covered, that is evaluated by itself.
            missing = [n for n in _needs(node, rows) if n in mine and n not in done]
            if missing:
                waiting.extend(missing)
                started.update(n for n in missing if n.op_type == "Gradients")
                continue
            waiting.pop()
            order.append(node)
            done.add(node)
            if node.op_type == "Gradients":
                done.update(n for n in node.attrs["covers"] if n in mine)
    return order


def _needs(node: Node, rows: Set[Node]) -> Sequence[Node]:
    if node in rows:
        return (node.inputs[1], *node.control_inputs)
    if node.op_type == "Gradients":
        return (*node.attrs["needs"], *node.control_inputs)
    return (*node.inputs, *node.control_inputs)
