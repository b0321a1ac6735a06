"""`gs.saved_model`: a model with its values in one directory, for this package and for onnxruntime.

The directory has TensorFlow's names: `saved_model.pb`, `variables/`, where the values are a checkpoint of globalstep
(safetensors). Beside them is `<signature>.onnx` for each signature, whose values are in those very files: onnxruntime
and others serve it from the directory. TensorFlow itself cannot load it: the graph is globalstep's.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef, SignatureDef

from globalstep.chief.checkpoints.checkpoint import CheckpointReader
from globalstep.chief.checkpoints.checkpoint_state import checkpoint_exists
from globalstep.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from globalstep.files.storage import atomic_write, storage_for
from globalstep.tf1.exporting.meta_graph_files import saver_of
from globalstep.tf1.exporting.meta_graphs import import_meta, meta_graph_of
from globalstep.tf1.exporting.onnx_models import Stored, onnx_model, variables_between
from globalstep.tf1.exporting.saved_model_files import meta_graph_with, read_models, write_models
from globalstep.tf1.exporting.signatures import predict_signature_def
from globalstep.tf1.graph.graph import Graph, GraphKeys, Node, get_default_graph
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.variables.variables import Variable

_log = logging.getLogger("globalstep")

_MAIN_OP = "saved_model_main_op"
_NOT_EMPTY = (
    "Export directory already exists, and isn't empty. Please choose a different export directory, or delete all the "
    "contents of the specified directory: {}"
)


class SavedModelBuilder:
    """Writes a saved model: add the graph with its values, then save.

    Args:
        export_dir: Where to; a directory that is not there, or empty.
        onnx: Whether to write each signature as an ONNX model, too; None: those that ONNX has operations for, and the
            log has a warning for each other. Not in TensorFlow.

    Raises:
        AssertionError: If the directory holds something, as in TensorFlow.

    Source: TensorFlow 1.15 `tf.saved_model.builder.SavedModelBuilder`.
    """

    def __init__(self, export_dir: str, onnx: bool | None = None) -> None:
        self._export_dir = str(export_dir)
        self._storage = storage_for(self._export_dir)
        if self._storage.is_directory(self._export_dir) and self._storage.list(self._export_dir):
            raise AssertionError(_NOT_EMPTY.format(self._export_dir))
        self._onnx = onnx
        self._meta_graphs: list[MetaGraphDef] = []
        self._models: dict[str, bytes] = {}
        self._prefix = self._storage.join(self._storage.join(self._export_dir, "variables"), "variables")
        self._saver: Saver | None = None
        self._graph: Graph | None = None

    def add_meta_graph_and_variables(
        self,
        sess: Any,
        tags: Collection[str],
        signature_def_map: Mapping[str, SignatureDef] | None = None,
        assets_collection: Any = None,
        legacy_init_op: Any = None,
        clear_devices: bool = False,
        main_op: Any = None,
        strip_default_attrs: bool = False,
        saver: Saver | None = None,
    ) -> None:
        """Write the values, and take the session's graph with its signatures.

        Args:
            sess: A session.
            tags: What the graph is found by, usually `[gs.saved_model.tag_constants.SERVING]`.
            signature_def_map: Signatures by name.
            assets_collection: Must be empty: copy files beside the model yourself.
            legacy_init_op: Older name of `main_op`.
            clear_devices: Whether to leave out on which devices nodes are placed.
            main_op: Operation to run when the model is loaded.
            strip_default_attrs: Accepted as in TensorFlow.
            saver: Which Variables to save; default all global ones.

        Raises:
            AssertionError: If it was called before, as in TensorFlow.
            InvalidArgumentError: With onnx=True, if ONNX has nothing for a node of a signature; nothing is written.
            ValueError: If a signature names a node that is not there, or there are assets.
            OpError: If a file cannot be written, or a Variable is not initialized.
        """
        if self._graph is not None:
            raise AssertionError(
                "Graph state including variables and assets has already been saved. Please invoke `add_meta_graph()` "
                "instead."
            )
        graph: Graph = sess.graph
        signatures = dict(signature_def_map or {})
        if assets_collection:
            raise ValueError("assets_collection is not supported: copy files beside the saved model yourself.")
        ends = {name: _ends(graph, signature) for name, signature in signatures.items()}
        if saver is None:
            with graph.as_default():
                saver = Saver(graph.get_collection(GraphKeys.GLOBAL_VARIABLES), sharded=True, allow_empty=True)
        if self._onnx is not False:
            for inputs, outputs in ends.values():
                if self._onnx:
                    _translate_for_trial(inputs, outputs)
                _require_saved(saver, variables_between(list(inputs.values()), list(outputs.values())))
        self._storage.make_directories(self._storage.join(self._export_dir, "variables"))
        if saver.saved_names():
            saver.save(sess, self._prefix, write_meta_graph=False, write_state=False)
        self._saver, self._graph = saver, graph
        self._add(graph, tags, signatures, main_op if main_op is not None else legacy_init_op, clear_devices)

    def add_meta_graph(
        self,
        tags: Collection[str],
        signature_def_map: Mapping[str, SignatureDef] | None = None,
        assets_collection: Any = None,
        legacy_init_op: Any = None,
        clear_devices: bool = False,
        main_op: Any = None,
        strip_default_attrs: bool = False,
        saver: Saver | None = None,
    ) -> None:
        """Take the default graph under other tags; the values are those that were written.

        The arguments are those of `add_meta_graph_and_variables`.

        Raises:
            AssertionError: If no values were written before, as in TensorFlow.
            InvalidArgumentError: With onnx=True, if ONNX has nothing for a node of a signature.
            ValueError: If a signature names a node that is not there, or there are assets.
        """
        if self._graph is None:
            raise AssertionError(
                "Graph state including variables and assets has not been saved yet. Please invoke "
                "`add_meta_graph_and_variables()` first."
            )
        if assets_collection:
            raise ValueError("assets_collection is not supported: copy files beside the saved model yourself.")
        graph = get_default_graph()
        with graph.as_default():
            self._saver = saver or Saver(graph.get_collection(GraphKeys.GLOBAL_VARIABLES), allow_empty=True)
        operation = main_op if main_op is not None else legacy_init_op
        self._add(graph, tags, dict(signature_def_map or {}), operation, clear_devices)

    def save(self, as_text: bool = False) -> bytes:
        """Write the graphs; from then on the directory is a saved model.

        Args:
            as_text: Whether to write protobuf's text format.

        Returns:
            The path of the file.

        Raises:
            OpError: If a file cannot be written; the text names the path.
        """
        self._storage.make_directories(self._export_dir)
        for name, data in self._models.items():
            with atomic_write(self._storage, self._storage.join(self._export_dir, name)) as file:
                file.write(data)
        return write_models(self._export_dir, self._meta_graphs, as_text).encode()

    def _add(
        self,
        graph: Graph,
        tags: Collection[str],
        signatures: dict[str, SignatureDef],
        main_op: Any,
        clear_devices: bool,
    ) -> None:
        assert self._saver is not None
        added = {} if main_op is None else {_MAIN_OP: graph.as_graph_element(main_op)}
        saved, options = self._saver.saved_names(), self._saver.options()
        meta = meta_graph_of(graph, None, clear_devices, saved, options, added)
        meta.meta_info_def.tags.extend(tags)
        for name, signature in signatures.items():
            meta.signature_def[name].CopyFrom(signature)
        if self._onnx is not False:
            lead = "" if not self._meta_graphs else "-".join(sorted(tags)) + "."
            models = {}
            for name, signature in signatures.items():
                try:
                    models[f"{lead}{name}.onnx"] = self._model(name, signature, *_ends(graph, signature))
                except InvalidArgumentError as error:
                    if self._onnx:
                        raise
                    _warn_once(f"The signature {name!r} is written without its .onnx file. {error.message}")
            self._models.update(models)
        self._meta_graphs.append(meta)

    def _model(self, name: str, signature: SignatureDef, inputs: dict[str, Node], outputs: dict[str, Node]) -> bytes:
        needed = variables_between(list(inputs.values()), list(outputs.values()))
        values: dict[str, np.ndarray[Any, Any]] = {}
        stored: dict[str, Stored] = {}
        metadata = {"signature": name, "method_name": signature.method_name}
        if checkpoint_exists(self._prefix):
            assert self._saver is not None
            names = {held: saved for saved, all_held in self._saver.saved_names().items() for held in all_held}
            with CheckpointReader(self._prefix, self._storage) as reader:
                for variable in needed:
                    values[variable.op_name], at = _saved_value(reader, names[variable.op_name], variable)
                    if at is not None:
                        stored[variable.op_name] = at
                metadata.update({step: str(value) for step, value in reader.index.steps.items()})
        return onnx_model(inputs, outputs, values, stored, metadata)


@functools.cache
def _warn_once(text: str) -> None:
    """Say it at the first export of a model, not at each."""
    _log.warning(text)


def _saved_value(reader: CheckpointReader, name: str, variable: Variable) -> tuple[Any, Stored | None]:
    """The value, and where its bytes are if they are in one piece; then the value is not read."""
    part = variable.save_slice_info
    shape = reader.index.variables[name].shape if part is None else tuple(part.var_shape)
    offset = (0,) * len(shape) if part is None else tuple(part.var_offset)
    place = reader.place_of(name, offset, shape)
    dtype = np.dtype(variable.dtype.as_numpy_dtype)
    if place is None or dtype.hasobject:
        return reader.get_slice(name, offset, shape), None
    # Of the right shape, without taking memory.
    blank = np.broadcast_to(np.zeros((), dtype), shape)
    return blank, Stored(f"variables/{place[0]}", place[1], dtype.itemsize * int(np.prod(shape)))


def _translate_for_trial(inputs: dict[str, Node], outputs: dict[str, Node]) -> None:
    needed = variables_between(list(inputs.values()), list(outputs.values()))
    blank = {
        variable.op_name: np.broadcast_to(np.zeros((), variable.dtype.as_numpy_dtype), variable.shape.as_list())  # type: ignore[arg-type]
        for variable in needed
    }
    onnx_model(inputs, outputs, blank, {name: Stored("", 0, 0) for name in blank})


def _require_saved(saver: Saver, needed: Sequence[Variable]) -> None:
    saved = {name for names in saver.saved_names().values() for name in names}
    missing = [variable.op_name for variable in needed if variable.op_name not in saved]
    if missing:
        raise FailedPreconditionError(
            f"The signatures need the Variable {missing[0]!r}, which the Saver does not save: it is local to a "
            "session, or not in GLOBAL_VARIABLES. Give a `saver` that saves it, or onnx=False."
        )


def _ends(graph: Graph, signature: SignatureDef) -> tuple[dict[str, Node], dict[str, Node]]:
    try:
        ends = [
            {name: graph.get_tensor_by_name(info.name) for name, info in field.items()}
            for field in (signature.inputs, signature.outputs)
        ]
    except KeyError as error:
        raise ValueError(f"A signature names what the session's graph does not have: {error.args[0]}") from error
    return ends[0], ends[1]


def simple_save(
    session: Any,
    export_dir: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    legacy_init_op: Any = None,
    onnx: bool | None = None,
) -> None:
    """Write a saved model with one signature, for prediction.

    Args:
        session: A session with the values.
        export_dir: Where to; a directory that is not there, or empty.
        inputs: Name -> node that is fed.
        outputs: Name -> node that is wanted.
        legacy_init_op: Operation to run when the model is loaded.
        onnx: Whether to write it as an ONNX model, too; None: if ONNX has its operations. Not in TensorFlow.

    Raises:
        AssertionError: If the directory holds something, as in TensorFlow.
        InvalidArgumentError: With onnx=True, if ONNX has nothing for a node; nothing is written.
        OpError: If a file cannot be written, or a Variable is not initialized.

    Source: TensorFlow 1.15 `tf.saved_model.simple_save`.
    """
    signatures = {"serving_default": predict_signature_def(inputs, outputs)}
    builder = SavedModelBuilder(export_dir, onnx=onnx)
    builder.add_meta_graph_and_variables(
        session, ["serve"], signature_def_map=signatures, main_op=legacy_init_op, clear_devices=True
    )
    builder.save()


def load(
    sess: Any, tags: Collection[str], export_dir: str, import_scope: str | None = None, **saver_kwargs: Any
) -> Any:
    """Load a saved model of globalstep into a session: its graph and its values.

    Args:
        sess: The session.
        tags: The tags that it was saved with.
        export_dir: Where it is.
        import_scope: A name scope for its nodes.
        **saver_kwargs: Accepted as in TensorFlow.

    Returns:
        Its MetaGraphDef; `signature_def` has its signatures.

    Raises:
        NotFoundError: If there is no saved model, or its values are missing.
        RuntimeError: If it has no graph with these tags.
        ValueError: If it is TensorFlow's, or damaged, or a name is taken.

    Source: TensorFlow 1.15 `tf.saved_model.loader.load`.
    """
    export_dir = str(export_dir)
    meta = meta_graph_with(read_models(export_dir), tags, export_dir)
    storage = storage_for(export_dir)
    prefix = storage.join(storage.join(export_dir, "variables"), "variables")
    graph: Graph = sess.graph
    with graph.as_default():
        scope = "" if not import_scope else graph.unique_name(import_scope) + "/"
        what = f"The saved model {export_dir}"
        trial = import_meta(meta, Graph(), what=what)
        if trial.saved and not checkpoint_exists(prefix):
            raise NotFoundError(f"{what} lacks its values: {prefix} is no checkpoint.")
        before = len(graph.get_collection(_MAIN_OP))
        imported = import_meta(meta, graph, scope, what=what)
        saver = saver_of(imported, graph)
        if saver is not None and imported.saved:
            saver.restore(sess, prefix)
        for operation in graph.get_collection(_MAIN_OP)[before:]:
            sess.run(operation)
    return meta
