"""`gs.reverse_sequence`: slices reversed within the length of each."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.ops.joining_ops import reverse


def reverse_sequence(
    input: Any,
    seq_lengths: Any,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
    seq_dim: int | None = None,
    batch_dim: int | None = None,
) -> Node:
    """Reverse the first `seq_lengths[i]` elements of the i-th slice.

    Args:
        input: Node or array.
        seq_lengths: Integers, one for each slice along `batch_axis`; None to reverse all of each.
        seq_axis: The axis to reverse.
        batch_axis: The axis of the slices; default 0.
        name: Name of the node.
        seq_dim: Older name of `seq_axis`.
        batch_dim: Older name of `batch_axis`.

    Returns:
        A node like `input`.

    Raises:
        InvalidArgumentError: In the run, if a length is larger than the axis.
    """
    node = as_node(input)
    time = seq_axis if seq_axis is not None else seq_dim if seq_dim is not None else 0
    batch = batch_axis if batch_axis is not None else batch_dim if batch_dim is not None else 0
    if seq_lengths is None:
        return reverse(node, [time], name=name)
    return Node(
        "ReverseSequence", (node, as_node(seq_lengths)), name=name, dtype=node.dtype, shape=node.shape,
        attrs={"seq_axis": time, "batch_axis": batch},
    )  # fmt: skip


@computes("ReverseSequence")
def _reverse_sequence(values: Any, lengths: Any, *, seq_axis: int, batch_axis: int) -> Any:
    steps, count = values.shape[seq_axis], values.shape[batch_axis]
    counts = np.asarray(lengths).reshape(-1)
    if counts.size != count:
        raise InvalidArgumentError(f"Length of seq_lengths != input.dims({batch_axis}), ({counts.size} vs. {count})")
    if counts.size and (counts.min() < 0 or counts.max() > steps):
        raise InvalidArgumentError(f"seq_lengths must be between 0 and input.dims({seq_axis}), {steps}; got {counts}.")
    at = np.arange(steps)
    mirrored = np.where(at < counts[:, None], counts[:, None] - 1 - at, at)
    shape = [1] * values.ndim
    shape[batch_axis], shape[seq_axis] = mirrored.shape
    places = (mirrored if batch_axis < seq_axis else mirrored.T).reshape(shape)
    return np.take_along_axis(values, places, axis=seq_axis)


@gradient_of("ReverseSequence")
def _reverse_sequence_gradient(node: Node, grad: Node) -> Any:
    return reverse_sequence(grad, node.inputs[1], node.attrs["seq_axis"], node.attrs["batch_axis"]), None
