"""write_graph: a graph as a file, text or binary."""

from __future__ import annotations

from google.protobuf import text_format

from globalstep.files.storage import atomic_write, path_error, storage_for
from globalstep.files.tensorboard_protos import GraphDef
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.graph.graph_def import graph_def

__all__ = ["graph_def", "write_graph"]


def write_graph(graph_or_graph_def: Graph | GraphDef, logdir: str, name: str, as_text: bool = True) -> str:
    """Write a graph to a file, seen whole or not at all.

    Args:
        graph_or_graph_def: A Graph, or a GraphDef.
        logdir: Directory of the file, made if need be; a local path or a URL.
        name: The file's name, e.g. "graph.pbtxt".
        as_text: Whether to write protobuf's text format instead of the binary one.

    Returns:
        The path of the file.

    Raises:
        OpError: If it cannot be written; the text names the path.

    Source: TensorFlow 1.15 `tf.io.write_graph`.

    >>> import tempfile
    >>> import globalstep as gs
    >>> write_graph(gs.Graph(), tempfile.mkdtemp(), "graph.pbtxt").endswith("/graph.pbtxt")
    True
    """
    written = graph_or_graph_def
    if isinstance(written, Graph):
        written = graph_def(written)
    data = text_format.MessageToString(written).encode() if as_text else written.SerializeToString()
    storage = storage_for(logdir)
    path = storage.join(logdir, name)
    try:
        storage.make_directories(logdir)
    except OSError as error:
        raise path_error(error, logdir, "write") from error
    with atomic_write(storage, path) as file:
        file.write(data)
    return path
