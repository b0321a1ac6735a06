"""Export of checkpoints in TensorFlow's own format, which its Saver restores.

Layer: chief. Threads: functions only.
"""

from __future__ import annotations

from globalstep.chief.checkpoints.checkpoint import CheckpointReader
from globalstep.chief.exports.tf_bundle_writer import write_bundle
from globalstep.errors import AlreadyExistsError
from globalstep.files.storage import Storage, atomic_write, directory_of, storage_for

__all__ = ["export_checkpoint"]


def export_checkpoint(prefix: str, tf_prefix: str) -> tuple[str, ...]:
    """Read a checkpoint, every checksum compared, and write it as a TensorFlow V2 checkpoint.

    The names stay: slots are `<variable>/Adam` and so on in both. A Variable in parts becomes one tensor, of which
    TensorFlow restores parts, too. If the directory has no state file, it gets one that names the new checkpoint.

    Args:
        prefix: The checkpoint's prefix, e.g. "/data/run/model.ckpt-1000".
        tf_prefix: TensorFlow's prefix; its directory is made if it is not there.

    Returns:
        The names of the tensors.

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
