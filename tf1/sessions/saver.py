"""The Saver: names, keeps and restores checkpoints, as TensorFlow 1.15's does.

What is different is listed in docs/checkpoints.md; above all, a checkpoint is one consistent
snapshot of the whole cluster, and is named by the step of that snapshot.

Layer: tf1. A Saver belongs to one thread at a time, but for `save` and `start_save`, which threads may call
at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.checkpoints.checkpoint_save import Saveable
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_mtimes
from globalstep.chief.checkpoints.cluster_saver import STATE_FILE, BackgroundSave, ClusterSaver
from globalstep.chief.sessions.causes import why_not_written
from globalstep.files.storage import Storage, directory_of
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.exporting.meta_graph_files import GraphFile, export_meta_graph
from globalstep.tf1.graph.graph import GraphKeys, Node, get_default_graph
from globalstep.tf1.sessions.graph_saveables import saveables_of
from globalstep.tf1.variables.graph_program import as_program
from globalstep.tf1.variables.variables import Variable

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


class SaverDef:
    """TensorFlow's versions of checkpoints, for `Saver(write_version=...)`; here there is one format."""

    LEGACY = 0
    V1 = 1
    V2 = 2


class Saver:
    """Saves Variables to checkpoints and restores them.

    Args:
        var_list: Variables, or a mapping from names in the checkpoint to Variables. Default: all global
            Variables of the graph at this moment, slots and steps included. The parts of a partitioned
            Variable are saved under the name of the whole, and may be restored in other parts.
        reshape: When restoring, accept another shape with as many elements.
        sharded: Accepted as in TensorFlow; a checkpoint always has a file for each PS.
        max_to_keep: How many checkpoints to keep; None or 0 for all.
        keep_checkpoint_every_n_hours: Of those beyond, keep one every so many hours for good.
        name: Accepted as in TensorFlow.
        restore_sequentially: Accepted as in TensorFlow.
        saver_def: Accepted as in TensorFlow; must be None.
        builder: Accepted as in TensorFlow.
        defer_build: Take the Variables at `build()` instead of now.
        allow_empty: Do nothing, instead of failing, when there are no Variables.
        write_version: Accepted as in TensorFlow; there is one format.
        pad_step_number: Write steps with at least 8 digits.
        save_relative_paths: Write relative paths to the state file, so that its directory can be moved.
        filename: Accepted as in TensorFlow.
        clock: Where time comes from.
        storage: Where checkpoints go; by default as their path says.

    Raises:
        ValueError: If there are no Variables, or two of one name, or `max_to_keep` is negative.
        TypeError: If `var_list` holds something else than Variables.

    Source: TensorFlow 1.15 `tf.train.Saver`.
    """

    def __init__(
        self,
        var_list: Sequence[Variable] | Mapping[str, Variable] | None = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: Any = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: Any = None,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        storage: Storage | None = None,
    ) -> None:
        if defer_build and var_list:
            raise ValueError(
                "If `var_list` is provided then build cannot be deferred. Either set defer_build=False or "
                "var_list=None."
            )
        if saver_def is not None:
            raise ValueError("saver_def is not supported: make the Saver from its Variables.")
        self._var_list = var_list
        self._reshape = reshape
        self._sharded = sharded
        self._allow_empty = allow_empty
        self._clock = clock
        self._saver = ClusterSaver(
            max_to_keep,
            keep_checkpoint_every_n_hours,
            reshape=reshape,
            pad_step_number=pad_step_number,
            save_relative_paths=save_relative_paths,
            clock=clock,
            storage=storage,
        )
        self._saveables: list[Saveable] | None = None
        self._graph_file = GraphFile()
        if not defer_build:
            self.build()

    def build(self) -> None:
        """Take the Variables; only needed with `defer_build`.

        Raises:
            ValueError: If there are none (and that is not allowed), or two of one name.
            TypeError: If the list holds something else.
        """
        if self._saveables is not None:
            return
        var_list = self._var_list
        if var_list is None:
            var_list = get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES)
        self._saveables = saveables_of(var_list)
        if not self._saveables and not self._allow_empty:
            self._saveables = None
            raise ValueError("No variables to save")

    @property
    def saves_in_background(self) -> bool:
        """Whether `start_save` does what `save` does: not where a class of its own has another `save`."""
        return type(self).save is Saver.save

    @property
    def last_checkpoints(self) -> list[str]:
        """The checkpoints that were saved and are not deleted, oldest first."""
        return self._saver.retention.paths

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Set the list of checkpoints; the times are those of the files, or now.

        Args:
            last_checkpoints: Prefixes, oldest first.
        """
        now = self._clock.time()
        self._saver.retention.recover(
            (path, next(iter(get_checkpoint_mtimes([path])), now)) for path in last_checkpoints
        )

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: Iterable[tuple[str, float]]) -> None:
        """Set the list of checkpoints.

        Args:
            last_checkpoints_with_time: (prefix, seconds since the epoch), oldest first.
        """
        self._saver.set_last(last_checkpoints_with_time)

    def recover_last_checkpoints(self, checkpoint_paths: Sequence[str]) -> None:
        """Take over the checkpoints of an earlier run, so that they count for `max_to_keep`.

        Args:
            checkpoint_paths: Prefixes, oldest first; those that are not there are left out.
        """
        self._saver.recover_last(checkpoint_paths)

    def save(
        self,
        sess: Any,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str | None:
        """Write a checkpoint of one consistent snapshot of the cluster; it is durable when this returns.

        Args:
            sess: A session (not a monitored one: use its `raw_session()`, or a hook's).
            save_path: Path of the checkpoint without its step.
            global_step: A number to put to the name; or a step Variable, whose value in the snapshot it is
                then; or a tensor, evaluated just before the snapshot.
            latest_filename: Name of the state file; default "checkpoint".
            meta_graph_suffix: What the name of the graph's file ends with: "<checkpoint>.<suffix>".
            write_meta_graph: Whether to write the graph beside the checkpoint, for `gs.train.import_meta_graph`.
            write_state: Whether to update the state file and delete old checkpoints.
            strip_default_attrs: Accepted as in TensorFlow.
            save_debug_info: Accepted as in TensorFlow.

        Returns:
            The checkpoint's prefix; None if there are no Variables.

        Raises:
            RuntimeError: If `build()` was not called.
            TypeError: If `sess` is no session.
            ValueError: If neither the directory is there nor the one above it, or the state file's name is not
                possible.
            FailedPreconditionError: If a Variable is not initialized.
            OpError: If a file cannot be written; the checkpoints from before are still there.
        """
        suffix = meta_graph_suffix if write_meta_graph else None
        return self._save(sess, save_path, global_step, latest_filename, suffix, write_state)

    def start_save(
        self,
        sess: Any,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        write_state: bool = True,
    ) -> BackgroundSave:
        """Save without waiting for the disk: returns once the snapshot is taken. Not in TensorFlow.

        Saves of one Saver take turns: if another is being written, this one first waits until that is done.

        Args:
            sess: As for `save`; to be closed after the save has ended.
            save_path: As for `save`.
            global_step: As for `save`.
            latest_filename: As for `save`.
            write_state: As for `save`.

        Returns:
            The save; its `result()` waits for the end, and raises what went wrong after the snapshot.

        Raises:
            Exception: As `save`, for what goes wrong up to the snapshot.
        """
        return BackgroundSave(
            lambda on_taken: self._save(sess, save_path, global_step, latest_filename, "meta", write_state, on_taken),
            lambda: why_not_written(sess.cluster, directory_of(str(save_path))),
        )

    def _save(
        self,
        sess: Any,
        save_path: str,
        global_step: Any,
        latest_filename: str | None,
        meta_graph_suffix: str | None,
        write_state: bool,
        on_taken: Callable[[str], None] = lambda prefix: None,
    ) -> str | None:
        """Save; call `on_taken` with the checkpoint's prefix when nothing that happens later is in it any more."""
        saveables = self._built("save")
        latest_filename = latest_filename or STATE_FILE
        if directory_of(latest_filename):
            raise ValueError("'latest_filename' must not contain path components")
        save_path = str(save_path)
        storage = self._saver.storage_of(save_path)
        if (
            global_step is None
            and not self._sharded
            and save_path == storage.join(directory_of(save_path), latest_filename)
        ):
            raise ValueError(f"'latest_filename' collides with 'save_path': '{latest_filename}' and '{save_path}'")
        cluster = _cluster_of(sess)
        if not saveables:
            return None
        directory = directory_of(save_path)
        if not storage.is_directory(directory) and storage.is_directory(directory_of(directory)):
            # TensorFlow makes one directory, not those above it.
            storage.make_directories(directory)

        def step() -> str | int | None:
            # A step Variable names the checkpoint by its value in the snapshot; anything else is evaluated now.
            if isinstance(global_step, Node):
                return global_step.op_name if _is_step(cluster, global_step) else int(sess.run(global_step))
            return None if global_step is None else operator.index(global_step)

        def also(prefix: str, storage: Storage) -> None:
            if meta_graph_suffix is not None:
                self._graph_file.write(sess.graph, f"{prefix}.{meta_graph_suffix}", storage, self)

        return self._saver.save(
            cluster,
            saveables,
            save_path,
            step,
            state_file=latest_filename,
            write_state=write_state,
            suffix=meta_graph_suffix or "meta",
            on_taken=on_taken,
            also=also,
        )

    def export_meta_graph(
        self,
        filename: str | None = None,
        collection_list: Sequence[str] | None = None,
        as_text: bool = False,
        export_scope: str | None = None,
        clear_devices: bool = False,
        clear_extraneous_savers: bool = False,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> Any:
        """Write the default graph, and what this Saver saves of it; see `gs.train.export_meta_graph`."""
        return export_meta_graph(
            filename,
            saver_def=self,
            collection_list=collection_list,
            as_text=as_text,
            export_scope=export_scope,
            clear_devices=clear_devices,
        )

    def as_saver_def(self) -> Saver:
        """Give what `gs.train.export_meta_graph` takes as its `saver_def`: the Saver itself."""
        return self

    def saved_names(self) -> dict[str, list[str]]:
        """Give the names of what it saves: in the checkpoint -> of the Variables, several for the parts of one."""
        names: dict[str, list[str]] = {}
        for saveable in self._saveables or ():
            names.setdefault(saveable.name, []).append(saveable.variable)
        return names

    def options(self) -> dict[str, Any]:
        """Give the arguments besides its Variables that a Saver of an imported graph is made with."""
        return {"max_to_keep": self._saver.retention.max_to_keep, "sharded": self._sharded, "reshape": self._reshape}

    def restore(self, sess: Any, save_path: str) -> None:
        """Give the Variables their values from a checkpoint, all at once.

        Args:
            sess: A session.
            save_path: The checkpoint's prefix, as `save` or `latest_checkpoint` gave it.

        Raises:
            ValueError: If there is no such checkpoint.
            NotFoundError: If it lacks a Variable.
            InvalidArgumentError: If a Variable's shape or dtype is another.
            CheckpointError: If it is corrupt; nothing was changed.
        """
        saveables = self._built("restore")
        if not saveables:
            return
        if save_path is None:
            raise ValueError("Can't load save_path when it is None.")
        self._saver.restore(sess.cluster, lambda: as_program(sess.graph), saveables, str(save_path))

    def _built(self, what: str) -> list[Saveable]:
        if self._saveables is None:
            raise RuntimeError(f"`build()` should be called before {what} if defer_build==True")
        return [saveable for saveable in self._saveables if not saveable.own]


def _cluster_of(sess: Any) -> Any:
    cluster = getattr(sess, "cluster", None)
    if cluster is None or not hasattr(cluster, "snapshot"):
        raise TypeError(f"'sess' must be a Session; {sess}")
    return cluster


def _is_step(cluster: ClusterClient, node: Node) -> bool:
    decl = cluster.variables.get(node.op_name) if isinstance(node, Variable) else None
    return decl is not None and decl.is_step
