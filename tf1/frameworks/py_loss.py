"""gs.py_loss: a loss in plain numpy, or anything that gives arrays, whose function gives the gradients too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.frameworks.foreign_loss import LossNode, loss_node
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph
from globalstep.worker.frameworks.training_model import Array, Evaluation


def py_loss(
    fn: Callable[..., tuple[Any, Sequence[Any]]],
    variables: Sequence[Any] | Node,
    inputs: Sequence[Any] = (),
    *,
    name: str | None = None,
) -> LossNode:
    """Make a loss of a Python function that computes it and its gradients.

    Args:
        fn: Called in a run as `fn(*variables, *inputs)` with their values as arrays, those of Variables
            read-only. Returns the loss, a scalar, and a sequence of gradients, one for each of `variables`:
            a floating array of its shape, or None for zeros. Where only the loss is fetched the gradients
            are not looked at.
        variables: The Variables that it gives gradients for; also other floating nodes, such as rows
            from `gs.nn.embedding_lookup`.
        inputs: Other nodes whose values it needs, for example placeholders; constants to `gs.gradients`.
        name: Name scope of the nodes; default "py_loss".

    Returns:
        The loss: a scalar node of the dtype of the first of `variables`. `gs.gradients` and every optimizer
        take the gradients from the evaluation that gave the loss, without a copy; where the loss is
        scaled or added to others, by the chain rule. It cannot be differentiated twice (LookupError).

    Raises:
        TypeError: If one of `variables` is not floating.
        ValueError: If there are no `variables`.
        InvalidArgumentError: In the run, if what `fn` returns does not fit. Its own exceptions pass
            through, with a note on the node.

    >>> import numpy as np
    >>> import globalstep as gs
    >>> def line(w, b, x, y):
    ...     error = x * w + b - y
    ...     return np.mean(error**2), [2 * np.mean(error * x), 2 * np.mean(error)]
    >>> with gs.Graph().as_default(), gs.Session() as sess:
    ...     w, b = gs.Variable(0.0, name="w"), gs.Variable(0.0, name="b")
    ...     x, y = gs.placeholder(gs.float32, [None]), gs.placeholder(gs.float32, [None])
    ...     loss = gs.py_loss(line, [w, b], [x, y])
    ...     train_op = gs.train.GradientDescentOptimizer(0.5).minimize(loss)
    ...     sess.run(gs.global_variables_initializer())
    ...     for _ in range(50):
    ...         _ = sess.run(train_op, {x: [-1, 0, 1], y: [1, 3, 5]})
    ...     print(np.round(sess.run([w, b]), 3))
    [2. 3.]
    """
    items = list(variables) if isinstance(variables, (list, tuple)) else [variables]
    nodes = [as_node(item) for item in items]
    if not nodes:
        raise ValueError("gs.py_loss needs at least one Variable to give a gradient for.")
    for node in nodes:
        if not node.dtype.is_floating:
            raise TypeError(f"gs.py_loss cannot give a gradient for {node.name!r} of dtype {node.dtype.name}.")
    sources = [(node, True) for node in nodes] + [(as_node(item), False) for item in inputs]
    caller = f"{getattr(fn, '__name__', repr(fn))}()"

    def evaluate(values: Sequence[Array], wanted: tuple[int, ...]) -> Evaluation:
        loss, gradients = _pair(caller, fn(*values))
        if not wanted:
            return Evaluation(loss)
        results = [] if gradients is None else list(gradients)
        if len(results) != len(nodes):
            raise InvalidArgumentError(f"{caller} gave {len(results)} gradients for {_names(nodes)}.")
        return Evaluation(loss, [_fitting(caller, nodes[i], results[i], values[i]) for i in wanted])

    with get_default_graph().name_scope(name or "py_loss"):
        return loss_node(evaluate, sources, op_type="PyLoss", variables=variables)[0]


def _pair(caller: str, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise InvalidArgumentError(f"{caller} must return the loss and a sequence of gradients; it returned {pair!r}.")
    return pair[0], pair[1]


def _fitting(caller: str, node: Node, gradient: Any, value: Array) -> Array:
    """Give the gradient as an array; zeros for None."""
    if gradient is None:
        return np.zeros_like(value)
    array = np.asarray(gradient)
    if array.dtype.kind != "f" or array.shape != value.shape:
        raise InvalidArgumentError(
            f"{caller} gave a gradient of shape {array.shape} and dtype {array.dtype.name} for {node.op_name!r}, "
            f"which has shape {value.shape} and dtype {value.dtype.name}."
        )
    # A view, since it will be made read-only and the array may be the function's own.
    return array.astype(value.dtype, copy=False).view()


def _names(nodes: Sequence[Node]) -> str:
    return f"{len(nodes)} Variables: {', '.join(repr(node.op_name) for node in nodes)}"
