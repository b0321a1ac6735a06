"""The files of a saved model: `saved_model.pb`, its text form, and the model in ONNX for each signature.

Layer: tf1. Threads: functions only.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef

from globalstep.errors import NotFoundError
from globalstep.files.storage import atomic_write, path_error, storage_for

FILENAME_PB, FILENAME_PBTXT = "saved_model.pb", "saved_model.pbtxt"
_SCHEMA_VERSION = 1


@functools.cache
def _message() -> Any:
    """TensorFlow's SavedModel, which the tensorboard package does not ship: a version and MetaGraphDefs."""
    whole = MetaGraphDef.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(
        name="globalstep_saved_model.proto", package="globalstep", syntax="proto3", dependency=[whole.file.name]
    )
    message = file.message_type.add(name="SavedModel")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="saved_model_schema_version", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    graphs = message.field.add(name="meta_graphs", number=2, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED)
    graphs.type_name = f".{whole.full_name}"
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("globalstep.SavedModel"))


def contains_saved_model(export_dir: str) -> bool:
    """Say whether a directory holds a saved model."""
    storage = storage_for(str(export_dir))
    return any(storage.exists(storage.join(str(export_dir), name)) for name in (FILENAME_PB, FILENAME_PBTXT))


def write_models(export_dir: str, meta_graphs: Sequence[MetaGraphDef], as_text: bool) -> str:
    """Write the file that makes a directory a saved model, seen whole or not at all; give its path."""
    model = _message()(saved_model_schema_version=_SCHEMA_VERSION, meta_graphs=meta_graphs)
    storage = storage_for(export_dir)
    path = storage.join(export_dir, FILENAME_PBTXT if as_text else FILENAME_PB)
    with atomic_write(storage, path) as file:
        file.write(text_format.MessageToString(model).encode() if as_text else model.SerializeToString())
    return path


def read_models(export_dir: str) -> list[MetaGraphDef]:
    """Read the meta graphs of a saved model.

    Raises:
        NotFoundError: If the directory holds none.
        ValueError: If its file cannot be parsed.
        OpError: If it cannot be read.
    """
    storage = storage_for(export_dir)
    for name in (FILENAME_PB, FILENAME_PBTXT):
        path = storage.join(export_dir, name)
        if not storage.exists(path):
            continue
        try:
            with storage.open_read(path) as file:
                data = file.read()
        except OSError as error:
            raise path_error(error, path, "read") from error
        try:
            if name == FILENAME_PB:
                return list(_message().FromString(data).meta_graphs)
            return list(text_format.Parse(data.decode(), _message()()).meta_graphs)
        except (DecodeError, UnicodeDecodeError, RecursionError, text_format.ParseError) as error:
            raise ValueError(f"Cannot parse file {path}: {error}.") from error
    raise NotFoundError(f"SavedModel file does not exist at: {export_dir}/{{{FILENAME_PBTXT}|{FILENAME_PB}}}")


def meta_graph_with(meta_graphs: Sequence[MetaGraphDef], tags: Collection[str], export_dir: str) -> MetaGraphDef:
    """Give the meta graph that has exactly these tags.

    Raises:
        RuntimeError: If there is none, as in TensorFlow.
    """
    for meta in meta_graphs:
        if set(meta.meta_info_def.tags) == set(tags):
            return meta
    there = "; ".join(str(sorted(meta.meta_info_def.tags)) for meta in meta_graphs)
    raise RuntimeError(
        f"MetaGraphDef associated with tags {sorted(tags)} could not be found in SavedModel {export_dir}. "
        f"There are those with the tags {there}."
    )
