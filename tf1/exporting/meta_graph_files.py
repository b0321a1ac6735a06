"""`export_meta_graph` and `import_meta_graph`: `.meta` files, and the Savers of imported graphs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from globalstep.errors import NotFoundError, OpError
from globalstep.files.storage import Storage, atomic_write, path_error, storage_for
from globalstep.files.tensorboard_protos import MetaGraphDef
from globalstep.tf1.exporting.meta_graphs import ImportedGraph, SavedNames, import_meta, meta_graph_of
from globalstep.tf1.exporting.scoped_graphs import keep_scope
from globalstep.tf1.graph.graph import Graph, GraphKeys, get_default_graph
from globalstep.tf1.variables.variables import Variable

if TYPE_CHECKING:
    from globalstep.tf1.sessions.saver import Saver


_log = logging.getLogger("globalstep")


def export_meta_graph(
    filename: str | None = None,
    meta_info_def: Any = None,
    graph_def: Any = None,
    saver_def: Any = None,
    collection_list: Sequence[str] | None = None,
    as_text: bool = False,
    graph: Graph | None = None,
    export_scope: str | None = None,
    clear_devices: bool = False,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
    save_debug_info: bool = False,
    **kwargs: Any,
) -> MetaGraphDef:
    """Write a graph with its collections, for `import_meta_graph`.

    Args:
        filename: Where to, usually "<checkpoint>.meta"; None for nowhere.
        meta_info_def: Accepted as in TensorFlow.
        graph_def: Accepted as in TensorFlow; the graph itself is written.
        saver_def: A Saver, or None: what is to be restored. `Saver.export_meta_graph` gives its own.
        collection_list: Names of the collections to write; default all.
        as_text: Whether to write protobuf's text format.
        graph: The graph; default the default one.
        export_scope: A name scope, to write only what is under it, without its name; what that needs from outside,
            `NAME`, is given by the importer, as `input_map={"$unbound_inputs_NAME": ...}`. Default the whole graph.
        clear_devices: Whether to leave out on which devices nodes are placed.
        clear_extraneous_savers: Accepted as in TensorFlow.
        strip_default_attrs: Accepted as in TensorFlow.
        save_debug_info: Accepted as in TensorFlow.
        **kwargs: Accepted as in TensorFlow.

    Returns:
        The meta graph.

    Raises:
        OpError: If the file cannot be written; the text names the path.

    Source: TensorFlow 1.15 `tf.train.export_meta_graph`.
    """
    saved, options = (None, None) if saver_def is None else _saver_parts(saver_def)
    meta = meta_graph_of(
        graph if graph is not None else get_default_graph(), collection_list, clear_devices, saved, options
    )
    if export_scope:
        keep_scope(meta, export_scope)
    if filename:
        write_meta_graph(meta, str(filename), as_text)
    return meta


class GraphFile:
    """The `.meta` file beside each checkpoint of a Saver; written out once for as long as the graph does not change.

    Threads: its Saver calls it for one save at a time.
    """

    def __init__(self) -> None:
        self._written: tuple[Any, bytes] | None = None

    def write(self, graph: Graph | None, path: str, storage: Storage, saver: Saver) -> None:
        """Write the graph; where it cannot be written, log that: the checkpoint itself is there already."""
        if graph is None:
            return
        counts = [(name, len(graph.get_collection(name))) for name in graph.get_all_collection_keys()]
        state = (id(graph), graph.version, counts)
        try:
            if self._written is None or self._written[0] != state:
                meta = export_meta_graph(graph=graph, saver_def=saver)
                self._written = (state, meta.SerializeToString())
            with atomic_write(storage, path) as file:
                file.write(self._written[1])
        except (OpError, ValueError, TypeError, RuntimeError) as error:
            _log.warning("The checkpoint is written, but not its graph, %s: %s", path, error)


def _saver_parts(saver: Any) -> tuple[SavedNames, dict[str, Any]]:
    parts = getattr(saver, "saved_names", None)
    if parts is None:
        raise TypeError(f"saver_def must be a gs.train.Saver, or None; got {type(saver).__name__}.")
    return parts(), saver.options()


def write_meta_graph(meta: MetaGraphDef, path: str, as_text: bool = False, storage: Storage | None = None) -> None:
    """Write a meta graph to a file, seen whole or not at all.

    Raises:
        OpError: If it cannot be written; the text names the path.
    """
    data = text_format.MessageToString(meta).encode() if as_text else meta.SerializeToString()
    with atomic_write(storage if storage is not None else storage_for(path), path) as file:
        file.write(data)


def read_meta_graph(path: str) -> MetaGraphDef:
    """Read a meta graph, binary or text.

    Raises:
        NotFoundError: If there is no such file.
        ValueError: If it is no meta graph.
        OpError: If it cannot be read.
    """
    storage = storage_for(path)
    if not storage.exists(path):
        raise NotFoundError(f"File {path} does not exist.")
    try:
        with storage.open_read(path) as file:
            data = file.read()
    except OSError as error:
        raise path_error(error, path, "read") from error
    try:
        return MetaGraphDef.FromString(data)
    except DecodeError:
        pass
    try:
        return text_format.Parse(data.decode(), MetaGraphDef())
    except (UnicodeDecodeError, RecursionError, text_format.ParseError) as error:
        raise ValueError(f"Cannot parse file {path}: it is no meta graph ({error}).") from error


def import_meta_graph(
    meta_graph_or_file: MetaGraphDef | str,
    clear_devices: bool = False,
    import_scope: str | None = None,
    input_map: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Saver | None:
    """Add the graph of a `.meta` file to the default graph, and give its Saver.

    Args:
        meta_graph_or_file: A meta graph, or the path of one, usually "<checkpoint>.meta".
        clear_devices: Whether to place the nodes on no device.
        import_scope: A name scope for all that is imported; checkpoints are restored by the old names.
        input_map: Name in the file ("x:0") -> value to use in its place, with all that a part of a graph needs
            ("$unbound_inputs_x").
        **kwargs: Accepted as in TensorFlow.

    Returns:
        A Saver of the Variables that the exporting one saved; without that, of all global Variables; None if there are
        none.

    Raises:
        NotFoundError: If there is no such file.
        ValueError: If it is not globalstep's (TensorFlow's graphs have operations that only TensorFlow computes), or
            damaged, or a name is taken.

    Source: TensorFlow 1.15 `tf.train.import_meta_graph`.
    """
    graph = get_default_graph()
    if isinstance(meta_graph_or_file, MetaGraphDef):
        meta, what = meta_graph_or_file, "The meta graph"
    else:
        meta, what = read_meta_graph(str(meta_graph_or_file)), str(meta_graph_or_file)
    scope = "" if not import_scope else graph.unique_name(import_scope) + "/"
    mapped = {key.partition(":")[0]: graph.as_graph_element(item) for key, item in (input_map or {}).items()}
    return saver_of(import_meta(meta, graph, scope, clear_devices, mapped, what), graph)


def saver_of(imported: ImportedGraph, graph: Graph) -> Saver | None:
    """Give a Saver of an imported graph: of what the exporting Saver saved, or else of all global Variables."""
    from globalstep.tf1.sessions.saver import Saver

    if imported.saved is None:
        if not graph.get_collection(GraphKeys.GLOBAL_VARIABLES):
            return None
        with graph.as_default():
            return Saver()
    variables: Any = {name: [_variable(imported, item) for item in items] for name, items in imported.saved.items()}
    options = {name: imported.saver[name] for name in ("max_to_keep", "sharded", "reshape") if name in imported.saver}
    return Saver(variables, allow_empty=True, **options)


def _variable(imported: ImportedGraph, name: str) -> Variable:
    node = imported.nodes.get(name)
    if not isinstance(node, Variable):
        raise ValueError(f"The meta graph's Saver saves {name!r}, which is no Variable: the file is damaged.")
    return node
