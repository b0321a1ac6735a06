"""`tf.train.list_variables` and its like: what a checkpoint holds, and Variables that begin with it.

Layer: tf1. Threads: functions only. Source of rules and texts: TensorFlow 1.15 `checkpoint_utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.chief.checkpoints.checkpoint import CheckpointReader, delete_checkpoint
from globalstep.chief.checkpoints.checkpoint_state import checkpoint_exists, latest_checkpoint
from globalstep.files.storage import storage_for
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable, SaveSliceInfo
from globalstep.tf1.variables.variable_scope import store_of
from globalstep.tf1.variables.variables import Variable, begin_with


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
    checkpoint = latest_checkpoint(path)
    if checkpoint is None:
        raise ValueError(f"Couldn't find 'checkpoint' file or checkpoints in given directory {path}")
    return CheckpointReader(checkpoint)


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


def init_from_checkpoint(ckpt_dir_or_file: str, assignment_map: Mapping[str, Any]) -> None:
    """Have the initializers of Variables take values from a checkpoint, which they read when they run.

    It is called before `gs.global_variables_initializer()`, which takes the initializers as they are.

    Args:
        ckpt_dir_or_file: As for `load_checkpoint`.
        assignment_map: Name in the checkpoint -> Variable, parts of one, or name of one that `gs.get_variable` made; or
            "scope/" in the checkpoint -> "scope/" of such Variables. "/" is the root.

    Raises:
        ValueError: If the checkpoint lacks a tensor, or has it with another shape or dtype.
    """
    begin_from_checkpoint(ckpt_dir_or_file, sorted(assignment_map.items()))


def begin_from_checkpoint(ckpt_dir_or_file: str, assigned: Iterable[tuple[str, Any]]) -> None:
    """See `init_from_checkpoint`; a tensor may be named more than once."""
    with load_checkpoint(ckpt_dir_or_file) as reader:
        prefix, shapes, dtypes = reader.prefix, reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        for saved, name, variable in _assigned(ckpt_dir_or_file, assigned, shapes):
            parts = [*variable] if isinstance(variable, (list, tuple, PartitionedVariable)) else [variable]
            cut = parts[0].save_slice_info
            whole = parts[0].shape if cut is None else TensorShape(cut.full_shape)
            if not whole.is_compatible_with(shapes[saved]):
                raise ValueError(
                    f"Shape of variable {name} ({whole}) doesn't match with shape of tensor {saved} "
                    f"({shapes[saved]}) from checkpoint reader."
                )
            if dtypes[saved] != parts[0].dtype:
                raise ValueError(
                    f"Dtype of variable {name} ({parts[0].dtype.name}) doesn't match with dtype of tensor {saved} "
                    f"({dtypes[saved].name}) of the checkpoint {prefix}."
                )
            for part in parts:
                begin_with(part, _read(prefix, saved, part))


def _assigned(
    path: str, assigned: Iterable[tuple[str, Any]], shapes: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    """Give what a map says: name in the checkpoint, name of the Variable, and the Variable or its parts."""
    made = store_of().variables
    for saved, target in assigned:
        variable = made.get(target) if isinstance(target, str) else target
        if variable is not None:
            if saved not in shapes:
                raise ValueError(f"Tensor {saved} is not found in {path} checkpoint {dict(shapes)}")
            yield saved, _name_of(variable), variable
            continue
        scope = target.rpartition("/")[0]
        if not saved.endswith("/"):
            raise ValueError(
                f"Assignment map with scope only name {scope} should map to scope only {saved}. "
                "Should be 'scope/': 'other_scope/'."
            )
        for name in sorted(name for name in made if not scope or name.startswith(f"{scope}/")):
            own = name if target == "/" else name[len(scope) :].removeprefix("/")
            wanted = own if saved == "/" else saved + own
            if wanted not in shapes:
                raise ValueError(f"Tensor {wanted} ({own} in {saved}) is not found in {path} checkpoint")
            yield wanted, name, made[name]


def _name_of(variable: Any) -> str:
    names: list[str] = [part.name for part in variable] if isinstance(variable, (list, tuple)) else [variable.name]
    return ",".join(names)


def _read(prefix: str, saved: str, part: Variable) -> Node:
    """Give the node that reads a Variable, or what it has of a whole, from a checkpoint."""
    attrs = {"prefix": prefix, "tensor": saved, "slice": part.save_slice_info}
    name = f"{part.op_name}/checkpoint_initializer"
    return Node("RestoreV2", name=name, dtype=part.dtype, shape=part.shape, attrs=attrs, stateful=True)


@computes("RestoreV2")
def _restored(*, prefix: str, tensor: str, slice: SaveSliceInfo | None) -> npt.NDArray[Any]:
    with CheckpointReader(prefix) as reader:
        value = reader.get_tensor(tensor)
    if slice is None:
        return value
    where = zip(slice.var_offset, slice.var_shape, strict=True)
    part: npt.NDArray[Any] = value[tuple(np.s_[at : at + size] for at, size in where)]
    return part


def remove_checkpoint(
    checkpoint_prefix: str, checkpoint_format_version: int = 2, meta_graph_suffix: str = "meta"
) -> None:
    """Delete a checkpoint's files; `checkpoint_format_version` is accepted: there is one format."""
    delete_checkpoint(checkpoint_prefix, meta_graph_suffix=meta_graph_suffix)
