"""`gs.test.compute_gradient`: Jacobians by `gs.gradients`, and by differences of values.

Follows TensorFlow 1.15, python/ops/gradient_checker.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.ops.array_ops import reshape_like
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.sessions.session import Session, get_default_session


def compute_gradient(
    x: Any,
    x_shape: Any,
    y: Any,
    y_shape: Any,
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> Any:
    """Give the Jacobian of `y` by `x` twice: by `gs.gradients`, and by differences of values.

    Args:
        x: Floating node, or a list of them: what is varied. Its value is fed.
        x_shape: Shape of `x`, or a list of shapes.
        y: Floating node.
        y_shape: Shape of `y`.
        x_init_value: Where, or a list of arrays; default random numbers.
        delta: How far `x` is moved either way.
        init_targets: Operations to run before.
        extra_feed_dict: What else to feed.

    Returns:
        Two arrays [elements of x, elements of y], or a list of such pairs.

    Raises:
        ValueError: Without a default session, or where no gradient goes from `y` to `x`.

    >>> import globalstep as gs
    >>> x = gs.placeholder(gs.float64, [2])
    >>> with gs.Session():
    ...     theoretical, numerical = gs.test.compute_gradient(x, [2], x * x, [2], np.array([3.0, 4.0]))
    >>> theoretical.tolist(), numerical.round(6).tolist()
    ([[6.0, 0.0], [0.0, 8.0]], [[6.0, 0.0], [0.0, 8.0]])
    """
    session = get_default_session()
    if session is None:
        raise ValueError("compute_gradient needs a default session: use `with session.as_default():`.")
    if init_targets is not None:
        session.run(init_targets)
    several = isinstance(x, (list, tuple))
    nodes = [as_node(node) for node in (x if several else [x])]
    shapes = [tuple(int(n) for n in shape) for shape in (x_shape if several else [x_shape])]
    starts = (x_init_value if several else [x_init_value]) if x_init_value is not None else [None] * len(nodes)
    feeds = dict(extra_feed_dict or {})
    for node, shape, value in zip(nodes, shapes, starts, strict=True):
        kind = node.dtype.as_numpy_dtype
        feeds[node] = np.asarray(np.random.random_sample(shape) if value is None else value).astype(kind)
    target = as_node(y)
    jacobians = [_jacobians(session, node, target, tuple(y_shape), delta, feeds) for node in nodes]
    return jacobians if several else jacobians[0]


def _jacobians(session: Session, x: Node, y: Node, y_shape: Sequence[int], delta: float, feeds: dict[Any, Any]) -> Any:
    start = feeds[x]
    weights = placeholder(y.dtype, list(y_shape))
    (slope,) = gradients(y, [x], grad_ys=reshape_like(weights, y))
    if slope is None:
        raise ValueError(f"No gradient goes from {y.name!r} to {x.name!r}.")
    count = int(np.prod(y_shape))
    theoretical, numerical = (np.zeros((start.size, count), start.dtype) for _ in range(2))
    for column in range(count):
        hot = np.zeros(count, y.dtype.as_numpy_dtype)
        hot[column] = 1
        value = session.run(slope, {**feeds, weights: hot.reshape(tuple(y_shape))})
        if hasattr(value, "indices"):
            dense = np.zeros(start.shape, start.dtype)
            np.add.at(dense, value.indices, value.values)
            value = dense
        theoretical[:, column] = np.reshape(value, -1)
    for row in range(start.size):
        sides = []
        for step in (delta, -delta):
            moved = start.copy()
            moved.reshape(-1)[row] += step
            sides.append(np.reshape(session.run(y, {**feeds, x: moved}), -1))
        numerical[row] = (sides[0] - sides[1]) / (2 * delta)
    return theoretical, numerical


def compute_gradient_error(
    x: Any,
    x_shape: Any,
    y: Any,
    y_shape: Any,
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> float:
    """Give by how much the two Jacobians of `compute_gradient` differ at most.

    `x`, `x_shape`, `y`, `y_shape` and the others are as there.
    """
    jacobians = compute_gradient(x, x_shape, y, y_shape, x_init_value, delta, init_targets, extra_feed_dict)
    pairs = jacobians if isinstance(jacobians, list) else [jacobians]
    return max((float(np.abs(a - b).max()) for a, b in pairs if a.size), default=0.0)
