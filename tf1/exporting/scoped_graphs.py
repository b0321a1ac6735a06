"""The part of a meta graph that is under a name scope, with names relative to it.

What the part needs from outside becomes an unbound input: `$unbound_inputs_NAME`, which the importer gives.

Layer: tf1. Source: TensorFlow 1.15 `python/framework/meta_graph.py`.
"""

from __future__ import annotations

import json
from typing import Any

from globalstep.files.tensorboard_protos import MetaGraphDef, NodeDef
from globalstep.tf1.exporting.graph_files import PAYLOAD, named_nodes

#: The key of what a part needs from outside: a collection, as in TensorFlow.
UNBOUND = "unbound_inputs"
_PREFIX = "$unbound_inputs_"


def keep_scope(meta: MetaGraphDef, scope: str) -> None:
    """Leave in a meta graph only what is under a name scope, named as if the scope were the root.

    Args:
        meta: What `meta_graph_of` gave; it is changed.
        scope: The scope, such as "net/layer".

    Collections keep their items that refer to nothing outside, and the Saver the Variables inside, under the names that
    they have in its checkpoints.
    """
    part = _Part(scope.rstrip("/") + "/")
    nodes = [node for node in meta.graph_def.node if part.has(node.name) and part.is_whole(node)]
    unbound: dict[str, None] = {}
    for node in nodes:
        unbound.update(dict.fromkeys(part.outside(node)))
        part.rename(node)
    del meta.graph_def.node[:]
    meta.graph_def.node.extend(nodes)
    content = json.loads(meta.collection_def[PAYLOAD].bytes_list.value[0])
    collections, drawn = content["collections"], meta.collection_def
    content["collections"] = {name: part.items(items) for name, items in collections.items()}
    if content["saved"] is not None:
        content["saved"] = {
            name: [part.inner(item) for item in items]
            for name, items in content["saved"].items()
            if all(map(part.has, items))
        }
    content[UNBOUND] = [_PREFIX + name for name in unbound]
    for name in collections:
        names = [part.inner(item) for item in drawn[name].node_list.value if part.has(item)]
        drawn[name].node_list.value[:] = names
        if not names:
            del drawn[name]
    if unbound:
        drawn[UNBOUND].bytes_list.value.extend(item.encode() for item in content[UNBOUND])
    drawn[PAYLOAD].bytes_list.value[0] = json.dumps(content, separators=(",", ":")).encode()


class _Part:
    """The part of a graph under a scope, whose name ends with "/"."""

    def __init__(self, scope: str) -> None:
        self._scope = scope

    def has(self, name: str) -> bool:
        return name.startswith(self._scope)

    def inner(self, name: str) -> str:
        return name.removeprefix(self._scope) if self.has(name) else _PREFIX + name

    def is_whole(self, node: NodeDef) -> bool:
        """Whether it can be restored, or is only drawn but needs nothing from outside."""
        return PAYLOAD in node.attr or all(self.has(name) for name in named_nodes(node))

    def outside(self, node: NodeDef) -> list[str]:
        """Name what a node needs from outside, in its own order."""
        payload = json.loads(node.attr[PAYLOAD].s) if PAYLOAD in node.attr else {}
        # A Variable refers to the one that it is a slot of, and needs only its inputs.
        inputs = [item.removeprefix("^").partition(":")[0] for item in node.input]
        needed = inputs if payload.get("class") == "Variable" else [*inputs, *sorted(named_nodes(node))]
        return [name for name in needed if not self.has(name)]

    def rename(self, node: NodeDef) -> None:
        node.name = self.inner(node.name)
        for at, item in enumerate(node.input):
            name = item.removeprefix("^")
            node.input[at] = item[: len(item) - len(name)] + self.inner(name)
        if PAYLOAD in node.attr:
            written = self._renamed(json.loads(node.attr[PAYLOAD].s))
            node.attr[PAYLOAD].s = json.dumps(written, separators=(",", ":")).encode()

    def items(self, items: list[Any]) -> list[Any]:
        """Give the items of a collection that refer to nothing outside."""
        renamed = [self._renamed(item) for item in items]
        return [item for item in renamed if _PREFIX not in json.dumps(item)]

    def _renamed(self, written: Any) -> Any:
        if isinstance(written, list):
            return [self._renamed(item) for item in written]
        if not isinstance(written, dict):
            return written
        return {
            key: self.inner(item) if key == "node" and isinstance(item, str) else self._renamed(item)
            for key, item in written.items()
        }
