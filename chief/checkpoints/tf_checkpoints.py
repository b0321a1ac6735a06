"""Import of TensorFlow's own checkpoints, and export in their format, which its Saver restores.

Layer: chief. Threads: functions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from globalstep.chief.checkpoints.checkpoint import CheckpointReader
from globalstep.chief.checkpoints.checkpoint_format import (
    CheckpointIndex,
    SavedPart,
    SavedVariable,
    ShardFile,
    shard_file_name,
    write_index,
)
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state, update_checkpoint_state
from globalstep.chief.checkpoints.tf_bundle import TensorBundle, write_bundle
from globalstep.errors import AlreadyExistsError, InvalidArgumentError
from globalstep.files.shard_file import SavedTensor, TensorSpec, write_shard_from
from globalstep.files.storage import Storage, atomic_write, directory_of, storage_for
from globalstep.runtime.clock import SYSTEM_CLOCK


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import."""

    #: The new checkpoint's prefix.
    prefix: str
    #: Names of its tensors.
    names: tuple[str, ...]
    #: Name -> dtype of the tensors that our format cannot hold and that were left out.
    left_out: Mapping[str, str]


def import_checkpoint(tf_prefix: str, directory: str) -> Imported:
    """Read a TensorFlow V2 checkpoint, every checksum compared, and write it in our format.

    The names stay: slots are `<variable>/Adam` and so on in both. The directory's state file then names
    the new checkpoint as its latest.

    Args:
        tf_prefix: TensorFlow's prefix, e.g. "/data/model.ckpt-1000" (without ".index").
        directory: Where to write; made if it is not there.

    Raises:
        NotFoundError: If there is no such checkpoint.
        CheckpointError: If it is corrupt.
        AlreadyExistsError: If the directory has a checkpoint of that name.
        InvalidArgumentError: If nothing in it can be imported.
    """
    tf_prefix = tf_prefix.removesuffix(".index")
    bundle = TensorBundle(tf_prefix)
    if not bundle.shapes:
        raise InvalidArgumentError(f"The checkpoint {tf_prefix} holds no tensor of a dtype that we can hold.")
    storage = storage_for(directory)
    storage.make_directories(directory)
    base = tf_prefix.replace("\\", "/").rsplit("/", 1)[-1]
    prefix = storage.join(directory, base)
    if storage.exists(f"{prefix}.index.json"):
        raise AlreadyExistsError(f"There is a checkpoint {prefix} already; import into another directory.")
    file = shard_file_name(base, 0, 1)
    written = write_shard_from(
        storage,
        directory,
        file,
        [TensorSpec(name, bundle.dtypes[name], shape) for name, shape in bundle.shapes.items()],
        lambda names: [bundle.read(name) for name in names],
    )
    variables = dict(_described(written.tensors))
    index = CheckpointIndex(
        files=(ShardFile(file, written.file_bytes),),
        variables=variables,
        steps={name: int(bundle.read(name)) for name, saved in variables.items() if saved.kind == "step"},
        written_at=SYSTEM_CLOCK.time(),
    )
    write_index(storage, prefix, index)
    state = get_checkpoint_state(directory)
    before = [] if state is None else list(state.all_model_checkpoint_paths)
    update_checkpoint_state(directory, prefix, [*before, prefix], save_relative_paths=True)
    return Imported(prefix, tuple(sorted(index.variables)), bundle.unreadable)


def _described(tensors: tuple[SavedTensor, ...]) -> Iterator[tuple[str, SavedVariable]]:
    """The index's entries; TensorFlow does not say what a tensor is, so its name and shape have to."""
    shapes = {saved.name: saved.shape for saved in tensors}
    for saved in tensors:
        kind, primary, slot = "variable", "", ""
        parent, _, last = saved.name.rpartition("/")
        if parent in shapes and shapes[parent] == saved.shape:
            kind, primary, slot = "slot", parent, last
        elif last.endswith("global_step") and saved.shape == () and saved.dtype in ("int32", "int64"):
            kind = "step"
        elif last in ("beta1_power", "beta2_power") or last.startswith(("beta1_power_", "beta2_power_")):
            kind = "scalar"
        yield saved.name, SavedVariable(saved.dtype, saved.shape, (SavedPart.of(0, saved),), kind, primary, "", slot)


def export_checkpoint(prefix: str, tf_prefix: str) -> tuple[str, ...]:
    """Read a checkpoint, every checksum compared, and write it as a TensorFlow V2 checkpoint.

    The names stay: slots are `<variable>/Adam` and so on in both. A Variable in parts becomes one tensor, of which
    TensorFlow restores parts, too. If the directory has no state file, it gets one that names the new checkpoint.

    Args:
        prefix: The checkpoint's prefix, e.g. "/data/run/model.ckpt-1000".
        tf_prefix: TensorFlow's prefix; its directory is made if it is not there.

    Raises:
        NotFoundError: If there is no such checkpoint.
        CheckpointError: If it is corrupt; nothing is left.
        AlreadyExistsError: If there is a TensorFlow checkpoint of that prefix.
        OpError: If a file cannot be written.
    """
    tf_prefix = tf_prefix.removesuffix(".index")
    storage, directory = storage_for(tf_prefix), directory_of(tf_prefix)
    if storage.exists(f"{tf_prefix}.index"):
        raise AlreadyExistsError(f"There is a TensorFlow checkpoint {tf_prefix} already; export under another name.")
    with CheckpointReader(prefix) as reader:
        if directory:
            storage.make_directories(directory)
        names = tuple(sorted(reader.index.variables))
        write_bundle(storage, tf_prefix, names, reader.get_on_disk)
    _name_as_latest(storage, directory, tf_prefix)
    return names


def _name_as_latest(storage: Storage, directory: str, tf_prefix: str) -> None:
    state = storage.join(directory, "checkpoint")
    if storage.exists(state):
        return
    base = tf_prefix.replace("\\", "/").rsplit("/", 1)[-1].replace('"', '\\"')
    with atomic_write(storage, state) as file:
        file.write(f'model_checkpoint_path: "{base}"\nall_model_checkpoint_paths: "{base}"\n'.encode())
