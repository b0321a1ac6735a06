"""`tf.train.warm_start`: a new model begins with the values of another one's checkpoint, by the words of vocabularies.

Layer: tf1. Threads: functions only. Source of rules and texts: TensorFlow 1.12 `warm_starting_util.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from globalstep.chief.checkpoints.checkpoint import CheckpointReader
from globalstep.files.storage import storage_for
from globalstep.tf1.contrib.model_variables import get_variable_full_name
from globalstep.tf1.graph.graph import GraphKeys, Node, get_collection
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.ops.constant_ops import convert_to_tensor
from globalstep.tf1.variables.checkpoint_variables import begin_from_checkpoint, load_checkpoint
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable
from globalstep.tf1.variables.variables import Variable, begin_with


class VocabInfo(NamedTuple):
    """The vocabularies of a Variable and of the one that it begins with.

    Attributes:
        new_vocab: File of the words of this model, a line each.
        new_vocab_size: How many of them count.
        num_oov_buckets: Rows (or columns) behind those of the words, for others.
        old_vocab: File of the words of the checkpoint's model.
        old_vocab_size: How many of them count; -1 for all.
        backup_initializer: Gives the values of words that the old vocabulary lacks, and of the buckets; default zeros.
        axis: 0 if each word has a row, 1 if each has a column.
    """

    new_vocab: str
    new_vocab_size: int
    num_oov_buckets: int
    old_vocab: str
    old_vocab_size: int = -1
    backup_initializer: Any = None
    axis: int = 0


def warm_start(
    ckpt_to_initialize_from: str,
    vars_to_warm_start: Any = ".*",
    var_name_to_vocab_info: Mapping[str, VocabInfo] | None = None,
    var_name_to_prev_var_name: Mapping[str, str] | None = None,
) -> None:
    """Have Variables begin with values of a checkpoint; called before the initializers are run.

    Args:
        ckpt_to_initialize_from: A checkpoint, or a directory of them.
        vars_to_warm_start: A regular expression that trained Variables' names begin with; a list of such for all
            global Variables; a list of Variables; None for those of `var_name_to_vocab_info` alone.
        var_name_to_vocab_info: Name of a Variable -> its vocabularies: it gets the values of the words that both have.
        var_name_to_prev_var_name: Name of a Variable -> its name in the checkpoint.

    Raises:
        ValueError: If a name is not used, the axis of a vocabulary is neither 0 nor 1, or a value does not fit.
    """
    vocabularies, previous = dict(var_name_to_vocab_info or {}), dict(var_name_to_prev_var_name or {})
    grouped = _grouped(vars_to_warm_start)
    for names, what in (previous, "var_name_to_prev_var_name"), (vocabularies, "var_name_to_vocab_info"):
        if unused := set(names) - set(grouped):
            raise ValueError(
                f"You provided the following variables in {what} that were not used: {unused}.  Perhaps you "
                f"misspelled them?  Here is the list of viable variable names: {set(grouped)}"
            )
    with load_checkpoint(ckpt_to_initialize_from) as reader:
        prefix = reader.prefix
    whole = list[tuple[str, list[Variable]]]()
    for name, parts in grouped.items():
        saved, info = previous.get(name) or name, vocabularies.get(name)
        if info is not None:
            for part in parts:
                begin_with(part, _remapped(prefix, saved, part, info))
        elif vars_to_warm_start is not None:
            whole.append((saved, parts))
    begin_from_checkpoint(ckpt_to_initialize_from, whole)


def _grouped(wanted: Any) -> dict[str, list[Variable]]:
    """Give the Variables by name, the parts of a whole together."""
    if wanted is None or isinstance(wanted, str):
        chosen = get_collection(GraphKeys.TRAINABLE_VARIABLES, scope=wanted)
    elif not isinstance(wanted, list):
        raise ValueError(f"`vars_to_warm_start must be a `list` or `str`.  Given type is {type(wanted)}")
    elif all(isinstance(one, str) for one in wanted):
        chosen = [variable for one in wanted for variable in get_collection(GraphKeys.GLOBAL_VARIABLES, scope=one)]
    elif all(isinstance(one, (Variable, PartitionedVariable)) for one in wanted):
        chosen = [part for one in wanted for part in ([one] if isinstance(one, Variable) else one)]
    else:
        raise ValueError(
            "If `vars_to_warm_start` is a list, it must be all `Variable` or all `str`.  Given types are "
            f"{[type(one) for one in wanted]}"
        )
    grouped: dict[str, list[Variable]] = {}
    for part in chosen:
        parts = grouped.setdefault(get_variable_full_name(part), [])
        if not any(part is other for other in parts):
            parts.append(part)
    return grouped


def _remapped(prefix: str, saved: str, part: Variable, info: VocabInfo) -> Node:
    """Give the node of a Variable's initial value: the checkpoint's for the words that it has, else the backup's."""
    if info.axis not in (0, 1):
        raise ValueError(f"The only supported values for the axis argument are 0 and 1.  Provided axis: {info.axis}")
    shape = [int(size) for size in part.shape]
    make = info.backup_initializer
    backup = np.zeros(shape, part.dtype.as_numpy_dtype) if make is None else make(shape, dtype=part.dtype)
    cut = part.save_slice_info
    offsets = [0] * len(shape) if cut is None else list(cut.var_offset)
    source = convert_to_tensor(backup, dtype=part.dtype)
    vocabularies = ((info.new_vocab, info.new_vocab_size), (info.old_vocab, info.old_vocab_size))
    attrs = {"prefix": prefix, "tensor": saved, "axis": info.axis, "vocabularies": vocabularies}
    return Node(
        "LoadAndRemapMatrix", (source,), name=f"{part.op_name}/checkpoint_initializer", dtype=part.dtype,
        shape=part.shape, attrs={**attrs, "begin": offsets, "sizes": shape}, stateful=True,
    )  # fmt: skip


@computes("LoadAndRemapMatrix")
def _with_words_of(
    value: Any, *, prefix: str, tensor: str, axis: int, begin: Sequence[int], sizes: Sequence[int], vocabularies: Any
) -> Any:  # fmt: skip
    new, held_words = (_words(*vocabulary) for vocabulary in vocabularies)
    new, old = new[begin[axis] : begin[axis] + sizes[axis]], {word: at for at, word in enumerate(held_words)}
    to = [place for place, word in enumerate(new) if word in old]
    lead: tuple[Any, ...] = (slice(None),) * axis
    with CheckpointReader(prefix) as reader:
        held = reader.get_tensor(tensor)
    if axis:
        held = held[begin[0] : begin[0] + sizes[0]]
    value = np.array(value)
    value[(*lead, to)] = held[(*lead, [old[new[place]] for place in to])]
    return value


def _words(path: str, count: int) -> list[bytes]:
    with storage_for(path).open_read(path) as file:
        words = file.read().splitlines()
    return words if count < 0 else words[:count]
