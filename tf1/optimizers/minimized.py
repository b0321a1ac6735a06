"""The loss that a train op minimizes, which progress displays find without being given it.

Layer: tf1. Threads: graphs are built by one thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from globalstep.tf1.graph.graph import Graph, Node


def remember_loss(train_op: Node, loss: Node | None) -> None:
    """Remember the loss whose gradients a train op applies; None where it is not known.

    Args:
        train_op: What `Optimizer.apply_gradients` has made.
        loss: What `Optimizer.compute_gradients` was last called with.
    """
    if loss is not None:
        _losses(train_op.graph)[train_op] = loss


def loss_of(graph: Graph, fetched: Iterable[Node]) -> Node | None:
    """Find the loss of the first train op that a run carries out.

    Args:
        graph: The graph.
        fetched: What the run fetches; a train op may be among them, or be what one of them waits for or is made of.

    Returns:
        The loss, which the run has all the inputs of; None if it carries out no train op whose loss is known.
    """
    losses = _losses(graph)
    if not losses:
        return None
    waiting, seen = list(fetched), set[Node]()
    while waiting:
        node = waiting.pop(0)
        if node in losses:
            return losses[node]
        if node not in seen:
            seen.add(node)
            waiting += [*node.control_inputs, *node.inputs]
    return None


def _losses(graph: Graph) -> dict[Node, Node]:
    losses: dict[Node, Node] = graph.extras.setdefault(__name__, {})
    return losses
