"""Order of evaluation of the nodes of one round. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from globalstep.tf1.graph.graph import Node, closure_of


def evaluation_order(
    nodes: Sequence[Node], rows: Set[Node], reads: Collection[Node]
) -> tuple[list[Node], list[Node], list[Node]]:
    """Order the nodes of a round.

    Args:
        nodes: Nodes to evaluate, in order of creation; what they need beyond these is there already.
        rows: Those of them that read rows of a Variable.
        reads: Variables that the round reads whole.

    Returns:
        What comes before the read, the row reads that are part of the read, and the rest. Before the read comes
        what gives the ids of rows, and what has an effect but needs nothing that is read: a dequeue may wait for
        long, and the values read before it would have aged meanwhile.
    """
    mine = set(nodes)
    reading = _reading(nodes, rows, reads)
    at_once = [node for node in nodes if node in rows and node.inputs[1] not in reading]
    early_set = _closure([node.inputs[1] for node in at_once], mine)
    for node in nodes:
        if node.stateful and node not in early_set:
            needed = _closure([node], mine)
            if not needed & reading:
                early_set |= needed
    early = [node for node in nodes if node in early_set]
    done = early_set.union(at_once)
    return early, at_once, [node for node in nodes if node not in done]


def _reading(nodes: Sequence[Node], rows: Set[Node], reads: Collection[Node]) -> set[Node]:
    readers: set[Node] = set()
    for node in nodes:
        itself = node in rows or node.op_type == "InitializedValue"
        if itself or any(source in reads or source in readers for source in node.inputs):
            readers.add(node)
    return readers


def _closure(roots: Sequence[Node], within: set[Node]) -> set[Node]:
    return closure_of(within.intersection(roots), lambda node: within & {*node.inputs, *node.control_inputs})
