"""Slot Variables: companions of a Variable, on the same PS and named after it.

Layer: tf1. Source: TensorFlow 1.15 `python/training/slot_creator.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.mutations import Hyper
from globalstep.tf1.ops.constant_ops import filled
from globalstep.tf1.variables.variable_scope import store_of
from globalstep.tf1.variables.variables import Variable


def slot_variable(
    primary: Variable, name: str, *, initial: float | Node = 0.0, optimizer: str = "", slot: str = ""
) -> Variable:
    """Make a slot of a Variable, named "<primary>/<name>", with "_1", "_2", ... where that is taken.

    Args:
        primary: The Variable it belongs to; the slot has its shape, its dtype but for a node, and lives on its PS.
        name: Last part of the slot's own name.
        initial: What every element starts as, or a node of the whole initial value.
        optimizer: The optimizer's name in the graph.
        slot: The slot's name within the optimizer.

    Returns:
        A Variable in GLOBAL_VARIABLES that is not trained; of one in LOCAL_VARIABLES it lives in this process, too.
        That of a part of a partitioned Variable is the same part of the whole slot.
    """
    graph = primary.graph
    # TensorFlow names slots under the current variable scope, whatever the name scope is.
    scope = store_of(graph).scope.name
    with graph.as_default(), graph.name_scope(None):
        variable = Variable(
            initial_value=initial if isinstance(initial, Node) else lambda: _filled(primary, initial),
            trainable=False,
            validate_shape=primary.shape.is_fully_defined(),
            name=f"{scope}/{primary.op_name}/{name}" if scope else f"{primary.op_name}/{name}",
            dtype=None if isinstance(initial, Node) else primary.dtype,
            primary=primary,
            optimizer=optimizer,
            slot=slot,
        )
    variable.is_local = variable.is_own = primary.is_local
    part = primary.save_slice_info
    if part is not None:
        own_name = variable.op_name.rpartition("/")[2]
        variable.save_slice_info = replace(part, full_name=f"{part.full_name}/{own_name}")
    return variable


def _filled(primary: Variable, value: float) -> Node:
    if primary.shape.is_fully_defined():
        return filled("Fill", [int(size) for size in primary.shape], value, primary.dtype, None)
    sources, attrs = (primary.initialized_value(),), {"fill": value}
    return Node("FillLike", sources, name="Fill", dtype=primary.dtype, shape=primary.shape, attrs=attrs)


computes("FillLike", lambda array, *, fill: np.full(np.shape(array), fill, array.dtype))


def scalar_variable(graph: Graph, name: str, initial: Hyper, optimizer: str, local: bool = False) -> Variable:
    """Make a float32 number of an optimizer's own state, such as a beta power.

    Args:
        graph: Where to.
        name: The Variable's name, and the slot's.
        initial: Its initial value.
        optimizer: The optimizer's name in the graph.
        local: Whether it is to live in this process.
    """
    # Without the program's device: it lives on the sequencer, and takes no turn of a round robin.
    with graph.device(None):
        variable = Variable(initial, trainable=False, name=name, dtype="float32", optimizer=optimizer, slot=name)
    variable.is_local = variable.is_own = local
    return variable
