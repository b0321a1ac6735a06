"""`gs.nn.raw_rnn`: a recurrent network whose loop function chooses each input, state and output.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/rnn.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.loops.tensor_array import TensorArray
from globalstep.tf1.loops.while_loops import while_loop
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.constant_ops import zeros
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.math_ops import logical_not, logical_or
from globalstep.tf1.ops.reduction_ops import reduce_all
from globalstep.tf1.rnn.sequences import require_cell
from globalstep.tf1.variables.variable_scope import variable_scope


def raw_rnn(
    cell: Any,
    loop_fn: Callable[..., Any],
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """Run a cell until a function of the program says that every sequence has ended.

    Args:
        cell: The cell.
        loop_fn: Takes (time, cell output, cell state, loop state) and gives (finished [batch], next input, next
            state, what to emit, next loop state). It is called twice, when the graph is built: at time 0 with None
            for all but the time, when it gives the first input, state and loop state, and either None or zeros like
            what it will emit; and for all later steps. A loop state of None stays as it was.
        parallel_iterations: Accepted; steps come one after another.
        swap_memory: Accepted; values are in the worker's memory.
        scope: Scope of the Variables; default "rnn".

    Returns:
        TensorArrays of what was emitted, [batch, ...] for each step, zeros for sequences that had ended; the last
        state of each sequence; and the last loop state.

    Raises:
        TypeError: If `cell` is no cell or `loop_fn` no function.
        ValueError: If a structure or a shape is not the same in all steps.

    >>> import globalstep as gs
    >>> cell = gs.nn.rnn_cell.GRUCell(4)
    >>> def feed_back(time, output, state, loop_state):
    ...     first = output is None
    ...     given = gs.ones([2, 4]) if first else output
    ...     return time >= [3, 1], given, cell.zero_state(2, gs.float32) if first else state, output, None
    >>> emitted, state, _ = gs.nn.raw_rnn(cell, feed_back)
    >>> emitted.stack().shape, state.shape
    ((?, 2, 4), (2, 4))
    """
    require_cell("cell", cell)
    if not callable(loop_fn):
        raise TypeError("loop_fn must be a callable")
    with variable_scope(scope or "rnn"):
        time = as_node(0)
        finished, inputs, state, emitted, loop_state = loop_fn(time, None, None, None)
        nest.assert_same_structure(state, cell.state_size, check_types=False)
        inputs, state = nest.map_structure(as_node, inputs), nest.map_structure(as_node, state)
        zero, arrays = _emission(cell, inputs, state, emitted)
        loop = _RawLoop(cell, loop_fn, zero)
        first = (time, as_node(finished), inputs, arrays, state, as_node(0) if loop_state is None else loop_state)
        end = while_loop(lambda time, finished, *_: logical_not(reduce_all(finished)), loop.step, first)
        return end[3], end[4], None if loop_state is None else end[5]


class _RawLoop:
    """The body of the loop, with what does not change in it."""

    def __init__(self, cell: Any, loop_fn: Callable[..., Any], zero: Any) -> None:
        self._cell = cell
        self._loop_fn = loop_fn
        self._zero = zero

    def step(self, time: Node, finished: Node, inputs: Any, arrays: Any, state: Any, loop_state: Any) -> Any:
        output, new_state = self._cell(inputs, state)
        nest.assert_same_structure(state, new_state, check_types=False)
        after = time + 1
        now_finished, following, new, emitted, new_loop_state = self._loop_fn(after, output, new_state, loop_state)
        nest.assert_same_structure(state, new, check_types=False)
        nest.assert_same_structure(inputs, following, check_types=False)
        nest.assert_same_structure(arrays, emitted, check_types=False)
        emitted = nest.map_structure(lambda old, node: _kept(finished, old, node), self._zero, emitted)
        new = nest.map_structure(lambda old, node: _kept(finished, old, node), state, new)
        written = nest.map_structure(lambda array, node: array.write(time, node), arrays, emitted)
        following_state = loop_state if new_loop_state is None else new_loop_state
        return after, logical_or(finished, now_finished), following, written, new, following_state


def _kept(finished: Node, old: Any, new: Any) -> Any:
    """Give the old value of the sequences that had ended, and the new one of the others."""
    if isinstance(new, TensorArray):
        return new
    node = as_node(new)
    return node if as_node(old).shape.ndims == 0 else where(finished, old, node)


def _emission(cell: Any, inputs: Any, state: Any, emitted: Any) -> tuple[Any, Any]:
    """Give zeros like what one step emits, and an empty TensorArray for each."""
    one = nest.flatten(inputs)[0]
    rows = one.shape.as_list()[0] if one.shape.ndims else None
    batch = shape_of(one)[0] if rows is None else rows
    likes: list[tuple[Any, Any]] = []
    if emitted is None:
        structure, kind = cell.output_size, nest.flatten(state)[0].dtype
        for size in nest.flatten(structure):
            likes.append(([size] if isinstance(size, int) else TensorShape(size).as_list(), kind))
    else:
        structure = emitted
        for node in map(as_node, nest.flatten(structure)):
            likes.append((node.shape.as_list() if node.shape.is_fully_defined() else shape_of(node), node.dtype))
    zero, arrays = [], []
    for size, kind in likes:
        if isinstance(size, Node):
            zero.append(zeros(concat([[batch], size], 0), kind))
            arrays.append(TensorArray(kind, 0, dynamic_size=True))
        else:
            zero.append(zeros([batch, *size], kind))
            arrays.append(TensorArray(kind, 0, dynamic_size=True, element_shape=[rows, *size]))
    return nest.pack_sequence_as(structure, zero), nest.pack_sequence_as(structure, arrays)
