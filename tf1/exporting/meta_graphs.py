"""Meta graphs: a graph with its collections, and the Variables that its Saver saves.

A meta graph is a MetaGraphDef: a GraphDef that can be imported again (`globalstep.tf1.exporting.graph_files`),
collections, and, in the collection `_globalstep`, what TensorFlow's message has no field for.

Layer: tf1. Threads: as graph_files.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from globalstep.files.tensorboard_protos import MetaGraphDef
from globalstep.tf1.exporting.graph_files import DAMAGED, PAYLOAD, import_nodes, portable_graph_def
from globalstep.tf1.exporting.scoped_graphs import UNBOUND
from globalstep.tf1.exporting.values import NotWritableError, SharedObjects, ValueReader, ValueWriter
from globalstep.tf1.graph.graph import Graph, Node

_log = logging.getLogger("globalstep")

#: Number of the format; files of a greater one are refused.
FORMAT = 1
#: Name in a checkpoint -> names of the Variables, several for the parts of one, that it is of.
SavedNames = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """The nodes and collections that an import added to a graph.

    Attributes:
        nodes: Name in the file -> node.
        saved: What the Saver of the file saves; None without one.
        saver: The Saver's options.
    """

    nodes: dict[str, Node]
    saved: SavedNames | None
    saver: dict[str, Any]


def meta_graph_of(
    graph: Graph,
    collections: Iterable[str] | None = None,
    clear_devices: bool = False,
    saved: SavedNames | None = None,
    saver: Mapping[str, Any] | None = None,
    added: Mapping[str, Node] | None = None,
) -> MetaGraphDef:
    """Give a graph as a meta graph.

    Args:
        graph: The graph.
        collections: Which of its collections; default all.
        clear_devices: Whether to leave out on which devices nodes are placed.
        saved: What its Saver saves.
        saver: The Saver's options.
        added: Collections of one node each, besides those of the graph.

    Returns:
        The meta graph. Of a collection, what a file cannot hold (a queue runner, a Saver) is left out.
    """
    meta = MetaGraphDef()
    meta.meta_info_def.tensorflow_version = f"globalstep {importlib.metadata.version('globalstep')}"
    meta.graph_def.CopyFrom(portable_graph_def(graph, clear_devices))
    held: dict[str, Any] = {}
    for name in graph.get_all_collection_keys() if collections is None else collections:
        # As in TensorFlow, where other names of collections are left out, too.
        if isinstance(name, str):
            held[name] = _written(graph, name, graph.get_collection(name), meta)
    for name, node in (added or {}).items():
        held[name] = _written(graph, name, [node], meta)
    content = {"format": FORMAT, "collections": held, "saved": saved, "saver": dict(saver or {})}
    meta.collection_def[PAYLOAD].bytes_list.value.append(json.dumps(content, separators=(",", ":")).encode())
    return meta


def _written(graph: Graph, name: str, items: Iterable[Any], meta: MetaGraphDef) -> list[Any]:
    entries: list[Any] = []
    for item in items:
        try:
            entries.append(ValueWriter(graph).write(item))
        except NotWritableError as error:
            _log.debug("The meta graph has no %r of the collection %r: %s.", item, name, error)
            continue
        # For those who look into the file with TensorFlow's tools.
        if isinstance(item, Node):
            meta.collection_def[name].node_list.value.append(item.name)
    return entries


def import_meta(
    meta: MetaGraphDef,
    graph: Graph,
    scope: str = "",
    clear_devices: bool = False,
    input_map: Mapping[str, Node] | None = None,
    what: str = "The meta graph",
) -> ImportedGraph:
    """Add what a meta graph holds to a graph: all, or nothing if it cannot be.

    Args:
        meta: The meta graph.
        graph: Where to.
        scope: What names begin with, "" or with a final "/".
        clear_devices: Whether to place the nodes on no device.
        input_map: Name in the file -> node of the graph to use in its place.
        what: What `meta` is, for errors.

    Returns:
        What was added.

    Raises:
        ValueError: If it is not globalstep's, or damaged, or a name is taken, or it is a part of a graph, and what it
            needs from outside is not given.
    """
    if PAYLOAD not in meta.collection_def:
        version = meta.meta_info_def.tensorflow_version
        what = f"{what} of TensorFlow {version}" if version else what
        import_nodes(meta.graph_def, Graph(), what=what)
        raise ValueError(f"{what} was not written by globalstep, or holds nothing.")
    try:
        content = json.loads(meta.collection_def[PAYLOAD].bytes_list.value[0])
        if content["format"] > FORMAT:
            raise NotWritableError(f"its format is {content['format']}, and this version reads those up to {FORMAT}")
        saved, saver = content["saved"], dict(content.get("saver") or {})
        if saved is not None:
            saved = {str(name): list(map(str, items)) for name, items in saved.items()}
        held = {str(name): list(items) for name, items in content["collections"].items()}
        unbound = [str(name) for name in content.get(UNBOUND, ()) if name not in (input_map or {})]
    except DAMAGED as error:
        raise ValueError(f"{what} is damaged, or of a newer version of globalstep: {error}") from error
    if unbound:
        raise ValueError(
            f"Graph contains unbound inputs: {','.join(unbound)}. Must provide these inputs through input_map."
        )
    made, shared = import_nodes(meta.graph_def, graph, scope, input_map, clear_devices, what)
    for name, items in held.items():
        _add_to_collection(graph, name, items, made, shared, scope)
    return ImportedGraph(made, saved, saver)


def _add_to_collection(
    graph: Graph, name: str, items: Sequence[Any], made: Mapping[str, Node], shared: SharedObjects, scope: str
) -> None:
    for item in items:
        try:
            value = ValueReader(graph, made.__getitem__, shared, scope).read(item)
        except DAMAGED as error:
            _log.warning("The collection %r was imported without one of its items: %s.", name, error)
            continue
        graph.add_to_collection(name, value)
