"""FileWriter: what programs and hooks add summaries, graphs and session logs with.

Follows TensorFlow 1.15, python/summary/writer/writer.py and writer_cache.py; `SummaryWriter` is the name
of TensorFlow 0.x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from globalstep.chief.events.events import SummaryFileWriter, WritersByDirectory
from globalstep.files.tensorboard_protos import Event, GraphDef, MetaGraphDef, TaggedRunMetadata
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.graph.graph import Graph, get_default_graph
from globalstep.tf1.graph.graph_def import graph_def as graph_def_of

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session


class FileWriter(SummaryFileWriter):
    """Writes summaries and other events to an event file in `logdir`. Thread-safe.

    Args:
        logdir: Directory of the event file, made if need be; a local path or a URL.
        graph: A Graph (or a GraphDef) to add at once, for TensorBoard's Graphs tab.
        max_queue: Accepted as in TensorFlow: what is added is in the file at once.
        flush_secs: The same.
        graph_def: Deprecated in TensorFlow: a GraphDef instead of `graph`.
        filename_suffix: Ends the file's name.
        session: Accepted as in TensorFlow; the writer is the same with it.
        clock: Where the events' wall times come from.

    Raises:
        OpError: If the file cannot be made.

    >>> import tempfile
    >>> import globalstep as gs
    >>> with FileWriter(tempfile.mkdtemp()) as writer:
    ...     writer.add_summary(gs.Summary(value=[gs.Summary.Value(tag="loss", simple_value=0.5)]), global_step=1)
    >>> writer.closed
    True
    """

    def __init__(
        self,
        logdir: str,
        graph: Graph | GraphDef | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: GraphDef | None = None,
        filename_suffix: str | None = None,
        session: Session | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        graph_event = None
        if graph is not None or graph_def is not None:
            graph_event = _graph_bytes(graph, graph_def)
        super().__init__(logdir, filename_suffix, clock)
        # Guarded by _lock.
        self._run_tags: set[str] = set()
        if graph_event is not None:
            self._add(Event(graph_def=graph_event), None)

    def add_graph(
        self, graph: Graph | GraphDef | None = None, global_step: Any = None, graph_def: GraphDef | None = None
    ) -> None:
        """Add a graph, which TensorBoard then draws.

        Args:
            graph: A Graph, or a GraphDef as in TensorFlow 0.x.
            global_step: Step to record it at.
            graph_def: Deprecated in TensorFlow: a GraphDef instead of `graph`.

        Raises:
            ValueError: With both.
            TypeError: If `graph` is neither.
        """
        self._add(Event(graph_def=_graph_bytes(graph, graph_def)), global_step)

    def add_meta_graph(self, meta_graph_def: MetaGraphDef, global_step: Any = None) -> None:
        """Add a MetaGraphDef.

        Raises:
            TypeError: If it is none.
        """
        if not isinstance(meta_graph_def, MetaGraphDef):
            raise TypeError(f"meta_graph_def must be type MetaGraphDef, saw type: {type(meta_graph_def)}")
        self._add(Event(meta_graph_def=meta_graph_def.SerializeToString()), global_step)

    def add_run_metadata(self, run_metadata: Any, tag: str, global_step: Any = None) -> None:
        """Add what was recorded of one run (a RunMetadata) under a tag used only once.

        Raises:
            ValueError: If the tag was used before.
        """
        with self._lock:
            if tag in self._run_tags:
                raise ValueError("The provided tag was already used for this event type")
            self._run_tags.add(tag)
        tagged = TaggedRunMetadata(tag=tag, run_metadata=run_metadata.SerializeToString())
        self._add(Event(tagged_run_metadata=tagged), global_step)


def _graph_bytes(graph: Any, graph_def: GraphDef | None) -> bytes:
    if graph is not None and graph_def is not None:
        raise ValueError("Please pass only graph, or graph_def (deprecated), but not both.")
    chosen: Any = graph_def if graph is None else graph
    if isinstance(chosen, Graph):
        chosen = graph_def_of(chosen)
    if not isinstance(chosen, GraphDef):
        raise TypeError("The passed graph must be an instance of `Graph` or the deprecated `GraphDef`")
    data: bytes = chosen.SerializeToString()
    return data


class SummaryWriter(FileWriter):
    """FileWriter under the name and with the argument order of TensorFlow 0.x.

    Args:
        logdir: Directory of the event file.
        graph_def: A GraphDef (or a Graph) to add at once.
        max_queue: Accepted as in TensorFlow: what is added is in the file at once.
        flush_secs: The same.
        graph: A Graph instead of `graph_def`.
    """

    def __init__(
        self,
        logdir: str,
        graph_def: Any = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph: Graph | None = None,
    ) -> None:
        if isinstance(graph_def, Graph):
            graph, graph_def = graph_def, None
        super().__init__(logdir, graph, max_queue, flush_secs, graph_def)


_WRITERS = WritersByDirectory(lambda logdir: FileWriter(logdir, graph=get_default_graph()))


class FileWriterCache:
    """The FileWriters of a process, one for each directory, shared by its hooks. Thread-safe."""

    @staticmethod
    def get(logdir: str) -> FileWriter:
        """Give the writer of `logdir`, made with the default graph on first use or after it was closed.

        Args:
            logdir: Directory of the event file.
        """
        return _WRITERS.get(logdir)

    @staticmethod
    def close(logdir: str) -> None:
        """Close the writer of `logdir`, if there is one, and forget it.

        Args:
            logdir: As for `get`.
        """
        _WRITERS.close(logdir)

    @staticmethod
    def clear() -> None:
        """Close all writers and forget them."""
        _WRITERS.clear()


#: The name of TensorFlow 0.x.
SummaryWriterCache = FileWriterCache
