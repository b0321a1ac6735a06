"""CheckpointSaverHook: saves checkpoints of a graph, and writes the graph beside them.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from globalstep.chief.hooks.checkpoint import CheckpointSaver, CheckpointSaverListener
from globalstep.errors import OpError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.graph.graph import GraphKeys, get_default_graph
from globalstep.tf1.graph.write_graph import write_graph
from globalstep.tf1.hooks.step import global_step_for
from globalstep.tf1.ops.summaries import SummaryWriterCache


class CheckpointSaverHook(CheckpointSaver):
    """Saves a checkpoint at the start, every so many steps or seconds, and at the end.

    The first and the last are durable before training begins and when the session has ended. Those in
    between are written while training goes on, one at a time: a save that is due while another is being
    written waits for that, and the run with it. What goes wrong while writing is raised in the next run, or
    at the end; but a full disk ends no training: it is warned of, and the next save is tried when it is due. Only the
    last one raises. A saver whose class has a `save` of its own saves within the run.

    Args:
        checkpoint_dir: Where checkpoints go.
        save_secs: Save every so many seconds.
        save_steps: Or every so many global steps.
        saver: Saves; default the scaffold's, or the one of the collection SAVERS.
        checkpoint_basename: Name of the checkpoints before "-<step>".
        scaffold: Where to take the saver from.
        listeners: Called around each save.
        clock: Where time comes from.

    Raises:
        ValueError: If both a saver and a scaffold are given, or not exactly one of `save_secs` and
            `save_steps`.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Sequence[CheckpointSaverListener] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise ValueError("You cannot provide both saver and scaffold.")
        self._scaffold = scaffold
        super().__init__(checkpoint_dir, save_secs, save_steps, saver, checkpoint_basename, listeners, clock)

    def begin(self) -> None:
        """See SessionRunHook."""
        self._writer = SummaryWriterCache.get(self._checkpoint_dir)
        self._step = global_step_for("CheckpointSaverHook")
        super().begin()

    def _describe(self) -> None:
        graph = get_default_graph()
        try:
            write_graph(graph, self._checkpoint_dir, "graph.pbtxt")
        except (OpError, OSError) as error:
            self._bear(error)
        self._writer.add_graph(graph)

    def _find_saver(self) -> Any:
        if self._saver is None:
            self._saver = self._scaffold.saver if self._scaffold is not None else saver_from()
        return self._saver


def saver_from(collection: str = GraphKeys.SAVERS) -> Any:
    """Give the one saver of a collection of the default graph.

    Args:
        collection: Name of the collection.

    Returns:
        The saver.

    Raises:
        RuntimeError: If there is none, or more than one.
    """
    savers = get_default_graph().get_collection(collection)
    if not savers:
        raise RuntimeError(
            f"No items in collection {collection}. Please add a saver to the collection or provide a saver or scaffold."
        )
    if len(savers) > 1:
        raise RuntimeError(
            f"More than one item in collection {collection}. Please indicate which one to use by passing "
            "it to the constructor."
        )
    return savers[0]
