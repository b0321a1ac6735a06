"""`tf.train.list_variables` and its like: what a checkpoint holds, for programs.

Layer: chief. Threads: functions only.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from globalstep.chief.checkpoints.checkpoint import CheckpointReader
from globalstep.chief.checkpoints.checkpoint_state import checkpoint_exists, latest_checkpoint
from globalstep.files.storage import storage_for

__all__ = ["list_variables", "load_checkpoint", "load_variable"]


def load_checkpoint(ckpt_dir_or_file: str) -> CheckpointReader:
    """Open a checkpoint.

    Args:
        ckpt_dir_or_file: Its prefix, or a directory, whose latest checkpoint is taken.

    Returns:
        A reader.

    Raises:
        ValueError: If the directory has none.
        NotFoundError: If there is no checkpoint with that prefix.
    """
    path = str(ckpt_dir_or_file)
    if checkpoint_exists(path) or not storage_for(path).is_directory(path):
        return CheckpointReader(path)
    found = latest_checkpoint(path)
    if found is None:
        raise ValueError(f"Couldn't find 'checkpoint' file or checkpoints in given directory {path}")
    return CheckpointReader(found)


def load_variable(ckpt_dir_or_file: str, name: str) -> npt.NDArray[Any]:
    """Read one tensor of a checkpoint.

    Args:
        ckpt_dir_or_file: As for `load_checkpoint`.
        name: The tensor's name; a final ":0" is ignored.

    Returns:
        Its value.
    """
    with load_checkpoint(ckpt_dir_or_file) as reader:
        return reader.get_tensor(name.removesuffix(":0"))


def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, list[int]]]:
    """Give the names and shapes of a checkpoint's tensors, by name.

    Args:
        ckpt_dir_or_file: As for `load_checkpoint`.
    """
    with load_checkpoint(ckpt_dir_or_file) as reader:
        return sorted(reader.get_variable_to_shape_map().items())
