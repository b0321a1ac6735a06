"""Running cells over sequences: `gs.nn.dynamic_rnn`, `static_rnn`, and both of them in two directions.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/rnn.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from globalstep.dtypes import as_dtype
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.loops.tensor_array import TensorArray
from globalstep.tf1.loops.while_loops import while_loop
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.array_ops import transpose
from globalstep.tf1.ops.building import static_value
from globalstep.tf1.ops.constant_ops import zeros_like
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.joining_ops import concat, stack, unstack
from globalstep.tf1.ops.math_ops import cast, maximum, minimum
from globalstep.tf1.ops.reduction_ops import reduce_max
from globalstep.tf1.ops.reversal_ops import reverse_sequence
from globalstep.tf1.variables.variable_scope import variable_scope


def dynamic_rnn(
    cell: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state: Any = None,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[Any, Any]:
    """Run a cell over sequences whose number of steps may be known only in the run.

    The standard cells, in rows and with dropout, are evaluated a sequence at a time; other cells are traced once and
    evaluated step by step.

    Args:
        cell: The cell.
        inputs: [batch, time, size], or a nest of such; the size must be known.
        sequence_length: How much of each sequence counts, [batch]: past it outputs are zeros, and states stay.
        initial_state: The first state; default zeros of `dtype`.
        dtype: Dtype of the first state.
        parallel_iterations: Accepted; steps come one after another.
        swap_memory: Accepted; values are in the worker's memory.
        time_major: Whether inputs and outputs are [time, batch, size].
        scope: Scope of the Variables; default "rnn".

    Returns:
        Outputs [batch, time, size], and the last state within each length.

    Raises:
        TypeError: If `cell` is no cell.
        ValueError: If a size is not known, or neither `initial_state` nor `dtype` is given.

    >>> import globalstep as gs
    >>> words = gs.placeholder(gs.float32, [None, None, 8])
    >>> outputs, state = gs.nn.dynamic_rnn(gs.nn.rnn_cell.BasicLSTMCell(16), words, dtype=gs.float32)
    >>> outputs.shape, state.h.shape, [variable.name for variable in gs.trainable_variables()]
    ((?, ?, 16), (?, 16), ['rnn/basic_lstm_cell/kernel:0', 'rnn/basic_lstm_cell/bias:0'])
    """
    require_cell("cell", cell)
    with variable_scope(scope or "rnn"):
        nodes = nest.map_structure(as_node, inputs)
        if not time_major:
            nodes = nest.map_structure(_swapped, nodes)
        steps, batch = _sizes(nest.flatten(nodes))
        lengths = _lengths(sequence_length, batch)
        state = _first_state(cell, nodes, batch, initial_state, dtype)
        if getattr(cell, "runs_sequences", False) and isinstance(nodes, Node) and nodes.shape.ndims == 3:
            _require_depth(nodes)
            outputs, last = cell.over_sequence(nodes, state, lengths)
        else:
            outputs, last = _step_by_step(cell, nodes, steps, lengths, state, dtype)
        if not time_major:
            outputs = nest.map_structure(_swapped, outputs)
        return outputs, last


def _step_by_step(cell: Any, inputs: Any, steps: Any, lengths: Any, state: Any, dtype: Any) -> tuple[Any, Any]:
    """Run over [time, batch, ...] in a loop."""
    nodes = nest.flatten(inputs)
    for node in nodes:
        _require_depth(node)
    arrays = [TensorArray(node.dtype, steps).unstack(node) for node in nodes]
    kind = dtype or nest.flatten(state)[0].dtype
    outputs = [TensorArray(kind, steps) for _ in nest.flatten(cell.output_size)]
    last = steps if lengths is None else minimum(steps, maximum(1, reduce_max(lengths)))
    states = nest.flatten(state)

    def step(at: Node, written: Any, current: Any) -> Any:
        element = nest.pack_sequence_as(inputs, [array.read(at) for array in arrays])
        for node, whole in zip(nest.flatten(element), nodes, strict=True):
            node.set_shape(whole.shape[1:])
        current = nest.pack_sequence_as(state, current)
        output, new = cell(element, current)
        nest.assert_same_structure(state, new, check_types=False)
        flat_output, flat_new = nest.flatten(output), nest.flatten(new)
        if lengths is not None:
            over = at >= lengths
            flat_output = [where(over, zeros_like(node), node) for node in flat_output]
            flat_new = [
                where(over, old, node) if node.shape.ndims != 0 else node
                for old, node in zip(nest.flatten(current), flat_new, strict=True)
            ]
        done = [array.write(at, node) for array, node in zip(written, flat_output, strict=True)]
        return at + 1, done, flat_new

    _, written, ends = while_loop(lambda at, *_: at < last, step, (as_node(0), outputs, states))
    stacked = [array.stack() for array in written]
    static = static_value(steps)
    for node, array in zip(stacked, written, strict=True):
        if array.element_shape.dims is not None:
            node.set_shape([None if static is None else int(static), *array.element_shape.as_list()])
    return nest.pack_sequence_as(cell.output_size, stacked), nest.pack_sequence_as(state, ends)


def static_rnn(
    cell: Any, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None, scope: Any = None
) -> tuple[Any, Any]:
    """Run a cell over a list of inputs, one for each step.

    Args:
        cell: The cell.
        inputs: A list of [batch, size].
        initial_state: The first state; default zeros of `dtype`.
        dtype: Dtype of the first state.
        sequence_length: How much of each sequence counts, [batch]: past it outputs are zeros, and states stay.
        scope: Scope of the Variables; default "rnn".

    Returns:
        A list of outputs [batch, size], and the last state.

    Raises:
        TypeError: If `cell` is no cell, or `inputs` no list.
        ValueError: If `inputs` is empty, or neither `initial_state` nor `dtype` is given.
    """
    require_cell("cell", cell)
    if not nest.is_sequence(inputs):
        raise TypeError("inputs must be a sequence")
    if not inputs:
        raise ValueError("inputs must not be empty")
    if initial_state is None and dtype is None:
        raise ValueError("If no initial_state is provided, dtype must be specified")
    with variable_scope(scope or "rnn") as entered:
        steps = [nest.map_structure(as_node, item) for item in inputs]
        first = nest.flatten(steps[0])[0]
        batch = one_size(first, 0)
        lengths = _lengths(sequence_length, batch)
        state = initial_state
        if state is None:
            state = cell.zero_state(batch, as_dtype(dtype))
        state = nest.map_structure(as_node, state)
        if getattr(cell, "runs_sequences", False) and isinstance(steps[0], Node) and first.shape.ndims == 2:
            _require_depth(first)
            outputs, state = cell.over_sequence(stack(steps), state, lengths)
            return unstack(outputs, len(steps)), state
        emitted = []
        for at, step in enumerate(steps):
            if at == 1:
                entered.reuse_variables()
            output, new = cell(step, state)
            if lengths is not None:
                over = as_node(at) >= lengths
                output = nest.map_structure(lambda node, over=over: where(over, zeros_like(node), node), output)
                new = nest.map_structure(lambda old, node, over=over: where(over, old, node), state, new)
            emitted.append(output)
            state = new
        return emitted, state


def bidirectional_dynamic_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[Any, Any]:
    """Run one cell over sequences forwards, and one backwards, each sequence from its own end.

    Args:
        cell_fw: The cell that runs forwards.
        cell_bw: The cell that runs backwards.
        inputs: As for `dynamic_rnn`.
        sequence_length: As for `dynamic_rnn`.
        initial_state_fw: First state forwards.
        initial_state_bw: First state backwards.
        dtype: As for `dynamic_rnn`.
        parallel_iterations: Accepted.
        swap_memory: Accepted.
        time_major: As for `dynamic_rnn`.
        scope: Scope of the Variables; default "bidirectional_rnn", with "fw" and "bw" within.

    Returns:
        (outputs forwards, outputs backwards), (state forwards, state backwards).

    Raises:
        ValueError: As for `dynamic_rnn`.
    """
    require_cell("cell_fw", cell_fw)
    require_cell("cell_bw", cell_bw)
    options: dict[str, Any] = {"dtype": dtype, "time_major": time_major}

    def reverse(values: Any) -> Any:
        time, batch = (0, 1) if time_major else (1, 0)
        return nest.map_structure(lambda node: reverse_sequence(node, sequence_length, time, batch), values)

    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as entered:
            forwards, state_fw = dynamic_rnn(
                cell_fw, inputs, sequence_length, initial_state_fw, scope=entered, **options
            )  # fmt: skip
        with variable_scope("bw") as entered:
            backwards, state_bw = dynamic_rnn(
                cell_bw, reverse(nest.map_structure(as_node, inputs)), sequence_length, initial_state_bw, scope=entered,
                **options,
            )  # fmt: skip
        return (forwards, reverse(backwards)), (state_fw, state_bw)


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Any,
    initial_states_fw: Any = None,
    initial_states_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> tuple[Any, Any, Any]:
    """Run layers of two cells each, forwards and backwards, over what both of the layer below gave.

    Args:
        cells_fw: The cells that run forwards, one for each layer.
        cells_bw: The cells that run backwards.
        inputs: As for `dynamic_rnn`.
        initial_states_fw: First states forwards, one for each layer.
        initial_states_bw: First states backwards.
        dtype: As for `dynamic_rnn`.
        sequence_length: As for `dynamic_rnn`.
        parallel_iterations: Accepted.
        time_major: As for `dynamic_rnn`.
        scope: Scope of the Variables; default "stack_bidirectional_rnn", with "cell_0", ... within.
        swap_memory: Accepted.

    Returns:
        Outputs [batch, time, forwards + backwards] of the last layer, and the last states of all layers, forwards and
        backwards.

    Raises:
        ValueError: If the lists are empty or differ in length.
    """
    for name, cells in (("cells_fw", cells_fw), ("cells_bw", cells_bw)):
        if not isinstance(cells, (list, tuple)) or not cells:
            raise ValueError(f"{name} must be a list of RNNCells (one per layer).")
    if len(cells_fw) != len(cells_bw):
        raise ValueError("Forward and Backward cells must have the same depth.")
    first = [states or [None] * len(cells_fw) for states in (initial_states_fw, initial_states_bw)]
    if any(len(states) != len(cells_fw) for states in first):
        raise ValueError("There must be one initial state for each layer.")
    layer, last_fw, last_bw = inputs, [], []
    with variable_scope(scope or "stack_bidirectional_rnn"):
        for number, (cell_fw, cell_bw) in enumerate(zip(cells_fw, cells_bw, strict=True)):
            with variable_scope(f"cell_{number}"):
                outputs, (state_fw, state_bw) = bidirectional_dynamic_rnn(
                    cell_fw, cell_bw, layer, sequence_length, first[0][number], first[1][number], dtype,
                    time_major=time_major,
                )  # fmt: skip
            layer = concat(list(outputs), 2)
            last_fw.append(state_fw)
            last_bw.append(state_bw)
    return layer, tuple(last_fw), tuple(last_bw)


def static_bidirectional_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Any,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """Run one cell over a list of inputs forwards, and one backwards.

    Args:
        cell_fw: The cell that runs forwards.
        cell_bw: The cell that runs backwards.
        inputs: A list of [batch, size].
        initial_state_fw: First state forwards.
        initial_state_bw: First state backwards.
        dtype: Dtype of the first states.
        sequence_length: How much of each sequence counts, [batch].
        scope: Scope of the Variables; default "bidirectional_rnn", with "fw" and "bw" within.

    Returns:
        A list of outputs [batch, forwards + backwards], the last state forwards and the one backwards.

    Raises:
        TypeError: If a cell is none, or `inputs` no list.
        ValueError: As for `static_rnn`.
    """
    require_cell("cell_fw", cell_fw)
    require_cell("cell_bw", cell_bw)
    if not nest.is_sequence(inputs):
        raise TypeError("inputs must be a sequence")
    if not inputs:
        raise ValueError("inputs must not be empty")

    def reverse(values: Sequence[Any]) -> list[Any]:
        if sequence_length is None:
            return list(reversed(values))
        return unstack(reverse_sequence(stack(list(values)), sequence_length, 0, 1), len(values))

    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as entered:
            forwards, state_fw = static_rnn(cell_fw, inputs, initial_state_fw, dtype, sequence_length, entered)
        with variable_scope("bw") as entered:
            backwards, state_bw = static_rnn(
                cell_bw, reverse(inputs), initial_state_bw, dtype, sequence_length, entered
            )  # fmt: skip
        outputs = [concat([one, other], 1) for one, other in zip(forwards, reverse(backwards), strict=True)]
        return outputs, state_fw, state_bw


def is_cell(cell: Any) -> bool:
    """Say whether something has what a cell has."""
    return callable(cell) and all(hasattr(cell, part) for part in ("output_size", "state_size", "zero_state"))


def require_cell(name: str, cell: Any) -> None:
    """Raise TypeError unless `cell` is an RNNCell."""
    if not is_cell(cell):
        raise TypeError(f"The argument {name!r} ({cell!r}) is not an RNNCell.")


def _require_depth(node: Node) -> None:
    if node.shape.ndims and node.shape.as_list()[-1] is None:
        raise ValueError("Input size (depth of inputs) must be accessible via shape inference, but saw value None.")


def _swapped(node: Node) -> Node:
    """Exchange the first two dimensions."""
    rank = node.shape.ndims
    return transpose(node, [1, 0, *range(2, 3 if rank is None else rank)])


def one_size(node: Node, axis: int) -> Any:
    """Give a size of a node: an int, or a node where it is not known before a run."""
    size = node.shape.as_list()[axis] if node.shape.ndims else None
    return size if size is not None else shape_of(node)[axis]


def _sizes(nodes: Sequence[Node]) -> tuple[Any, Any]:
    for node in nodes:
        if node.shape.ndims is not None and node.shape.ndims < 2:
            raise ValueError(f"Shape {node.shape} must have rank at least 2")
    return as_node(one_size(nodes[0], 0)), one_size(nodes[0], 1)


def _lengths(sequence_length: Any, batch: Any) -> Node | None:
    if sequence_length is None:
        return None
    node = cast(as_node(sequence_length), "int32")
    if node.shape.ndims not in (None, 1):
        raise ValueError(
            f"sequence_length must be a vector of length batch_size, but saw shape: {node.shape}"
        )  # fmt: skip
    count = node.shape.as_list()[0] if node.shape.ndims else None
    if count is not None and isinstance(batch, int) and count != batch:
        raise ValueError(f"sequence_length has {count} entries for a batch of {batch} sequences.")
    return node


def _first_state(cell: Any, inputs: Any, batch: Any, initial_state: Any, dtype: Any) -> Any:
    if initial_state is not None:
        return nest.map_structure(as_node, initial_state)
    if dtype is None:
        raise ValueError("If there is no initial_state, you must give a dtype.")
    make = getattr(cell, "get_initial_state", None)
    if make is not None:
        return make(inputs=None, batch_size=batch, dtype=as_dtype(dtype))
    return cell.zero_state(batch, as_dtype(dtype))
