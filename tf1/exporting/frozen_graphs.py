"""`gs.graph_util`: parts of GraphDefs, and GraphDefs whose Variables are constants.

Layer: tf1. Threads: functions only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from globalstep.files.tensorboard_protos import GraphDef
from globalstep.tf1.exporting.graph_files import PAYLOAD, constant_def, named_nodes, portable_graph_def
from globalstep.tf1.graph.graph import Graph, closure_of
from globalstep.tf1.sessions.session import Session

_log = logging.getLogger("globalstep")


def convert_variables_to_constants(
    sess: Session,
    input_graph_def: Any,
    output_node_names: Sequence[str],
    variable_names_whitelist: Collection[str] | None = None,
    variable_names_blacklist: Collection[str] | None = None,
) -> GraphDef:
    """Give the part of a graph that outputs need, with the Variables' present values as constants ("frozen").

    Args:
        sess: A session in which the Variables have values.
        input_graph_def: The graph, as `sess.graph.as_graph_def()` gives it, or a Graph.
        output_node_names: Names of nodes, without ":0".
        variable_names_whitelist: Which Variables become constants; default all.
        variable_names_blacklist: Which do not.

    Returns:
        A GraphDef: write it with `SerializeToString()` or `gs.train.write_graph`, read it with `gs.import_graph_def`.

    Raises:
        AssertionError: If an output is not in the graph, as in TensorFlow.
        TypeError: If `input_graph_def` is no GraphDef.
        ValueError: If it was not written by globalstep.
        FailedPreconditionError: If a Variable has no value.

    Source: TensorFlow 1.15 `tf.graph_util.convert_variables_to_constants`.
    """
    graph_def = portable_graph_def(input_graph_def) if isinstance(input_graph_def, Graph) else input_graph_def
    _require_graph_def(graph_def)
    if graph_def.node and not any(PAYLOAD in node.attr for node in graph_def.node):
        raise ValueError(
            "The GraphDef was not written by globalstep: take `sess.graph.as_graph_def()` of the session's own graph."
        )
    excluded = {
        node.name
        for node in graph_def.node
        if node.op == "VariableV2"
        and (
            (variable_names_whitelist is not None and node.name not in variable_names_whitelist)
            or node.name in (variable_names_blacklist or ())
        )
    }
    ends = {node.name for node in graph_def.node if node.op == "VariableV2"} - excluded
    part = _part(graph_def, output_node_names, ends)
    frozen = [node.name for node in part.node if node.name in ends]
    _log.info("Froze %d variables.", len(frozen))
    values = dict(zip(frozen, sess.run([f"{name}:0" for name in frozen]), strict=True)) if frozen else {}
    converted = GraphDef()
    for node in part.node:
        if node.name in values:
            converted.node.append(constant_def(node.name, np.asarray(values[node.name]), node.device))
        else:
            converted.node.append(node)
    _log.info("Converted %d variables to const ops.", len(values))
    return converted


def extract_sub_graph(graph_def: GraphDef, dest_nodes: Sequence[str]) -> GraphDef:
    """Give the part of a GraphDef that some nodes need.

    Args:
        graph_def: The GraphDef.
        dest_nodes: Their names, without ":0".

    Returns:
        A GraphDef with these nodes and those that they need, in the same order.

    Raises:
        AssertionError: If one is not in the graph, as in TensorFlow.
        TypeError: If `graph_def` is no GraphDef, or `dest_nodes` a single name.
    """
    _require_graph_def(graph_def)
    if isinstance(dest_nodes, str):
        raise TypeError("dest_nodes must be a list.")
    return _part(graph_def, dest_nodes, ())


def remove_training_nodes(input_graph: GraphDef, protected_nodes: Collection[str] | None = None) -> GraphDef:
    """Give a GraphDef as it is: nodes that only training needs are left out by `extract_sub_graph`.

    Args:
        input_graph: The GraphDef.
        protected_nodes: Accepted as in TensorFlow.

    Returns:
        A copy.
    """
    copied = GraphDef()
    copied.CopyFrom(input_graph)
    return copied


def _require_graph_def(value: Any) -> None:
    if not isinstance(value, GraphDef):
        raise TypeError(f"graph_def must be a graph_pb2.GraphDef proto, got {type(value).__name__}.")


def _part(graph_def: GraphDef, wanted: Sequence[str], ends: Collection[str]) -> GraphDef:
    """The nodes that `wanted` need; nothing of what those in `ends` need."""
    nodes = {node.name: node for node in graph_def.node}
    for name in wanted:
        if name not in nodes:
            raise AssertionError(f"{name} is not in graph")
    needed = closure_of(wanted, lambda name: () if name in ends or name not in nodes else named_nodes(nodes[name]))
    part = GraphDef()
    part.node.extend([node for node in graph_def.node if node.name in needed])
    return part
