"""The global step of a graph: made, found and checked.

Layer: tf1. Source: TensorFlow 1.15 `python/training/training_util.py`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from globalstep.tf1.graph.graph import Graph, GraphKeys, Node, get_default_graph
from globalstep.tf1.variables.variables import Variable

_log = logging.getLogger(__name__)


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """Read a step.

    Args:
        sess: A session.
        global_step_tensor: The node or the name of a step.

    Returns:
        Its value.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default(), gs.Session() as sess:
    ...     step = gs.Variable(10, trainable=False, name="global_step")
    ...     sess.run(step.initializer)
    ...     print("global_step: %s" % gs.train.global_step(sess, step))
    global_step: 10
    """
    return int(sess.run(global_step_tensor))


def create_global_step(graph: Graph | None = None) -> Variable:
    """Make the graph's global step: an int64 scalar, 0 at first, that is not trained.

    Args:
        graph: The graph; default the current one.

    Raises:
        ValueError: If it has one.
    """
    graph = graph or get_default_graph()
    if get_global_step(graph) is not None:
        raise ValueError('"global_step" already exists.')
    with graph.as_default(), graph.name_scope(None):
        return Variable(
            np.zeros((), np.int64),
            trainable=False,
            name=GraphKeys.GLOBAL_STEP,
            collections=[GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP],
            is_step=True,
        )


def get_global_step(graph: Graph | None = None) -> Any:
    """Find the graph's global step: the one item of GLOBAL_STEP, or the node named "global_step:0".

    Args:
        graph: The graph; default the current one.

    Returns:
        The step; None when there is none, or more than one in the collection.

    Raises:
        TypeError: If it is no integer scalar.
    """
    graph = graph or get_default_graph()
    steps = graph.get_collection(GraphKeys.GLOBAL_STEP)
    if len(steps) > 1:
        _log.error("Multiple tensors in global_step collection.")
        return None
    if steps:
        step = steps[0]
    else:
        try:
            step = graph.get_tensor_by_name("global_step:0")
        except KeyError:
            return None
    assert_global_step(step)
    return step


def integer_step(graph: Graph) -> Variable | None:
    """Find the global step that pushes can increment.

    Returns:
        The Variable; None where there is none, or where an old program has made "global_step" of a floating
        dtype (a default of `get_variable`), which is said once in the log.
    """
    try:
        step = get_global_step(graph)
    except TypeError as error:
        if graph.extras.setdefault(__name__, True):
            graph.extras[__name__] = False
            _log.warning("%s. It is counted as any other Variable; make it with gs.train.create_global_step.", error)
        return None
    return step if isinstance(step, Variable) else None


def get_or_create_global_step(graph: Graph | None = None) -> Any:
    """Find the graph's global step, or make it; see `get_global_step` and `create_global_step`."""
    graph = graph or get_default_graph()
    step = get_global_step(graph)
    return create_global_step(graph) if step is None else step


def assert_global_step(global_step_tensor: Any) -> None:
    """Check that something may be a global step.

    Args:
        global_step_tensor: What is checked.

    Raises:
        TypeError: If it is no node, no integer, or no scalar.
    """
    if not isinstance(global_step_tensor, Node):
        raise TypeError(f'Existing "global_step" must be a Variable or Tensor: {global_step_tensor}.')
    if not global_step_tensor.dtype.is_integer:
        raise TypeError(f'Existing "global_step" does not have integer type: {global_step_tensor.dtype.name}')
    shape = global_step_tensor.shape
    if shape.ndims != 0 and shape.is_fully_defined():
        raise TypeError(f'Existing "global_step" is not scalar: {shape}')
