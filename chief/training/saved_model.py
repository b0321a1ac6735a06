"""`gs.load`: the values of a checkpoint, in a module, in parameters, as a dict, or as a file for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from globalstep.chief.checkpoints.checkpoint import CheckpointReader
from globalstep.chief.checkpoints.checkpoint_format import prefixes_in
from globalstep.chief.checkpoints.checkpoint_state import checkpoint_exists, latest_checkpoint
from globalstep.errors import InvalidArgumentError, NotFoundError
from globalstep.files.shard_file import write_shard
from globalstep.files.storage import atomic_write, directory_of, storage_for
from globalstep.worker.frameworks.training_model import SCOPE, put_values, require_extra

#: The folder of the best checkpoint, in the run's.
BEST = "best"
#: The name of the moving averages of `gs.fit(ema_decay=...)`.
EMA = "ExponentialMovingAverage"


def load(run_dir: str, into: Any = None, *, step: int | str | None = None, ema: bool = False) -> Any:
    """Read the values of a trained model from a checkpoint.

    Args:
        run_dir: The run's directory, or a checkpoint's prefix.
        into: A torch module, which is changed in place; or parameters (jax or numpy), which are made anew with the
            values of the checkpoint. None for a dict of arrays.
        step: Which checkpoint: the step, "best" for the one that `gs.Evaluate` found best; default the newest.
        ema: Take the moving averages of the parameters that have one (`ema_decay` of `gs.fit`).

    Returns:
        `into` with the values, or the dict: name in the model -> array. One larger than 64 MiB lies in an unnamed
        temporary file that is mapped into memory; TMPDIR says where that is.

    Raises:
        NotFoundError: If there is no such checkpoint; names those that are there.
        CheckpointError: If it is damaged.
        InvalidArgumentError: If it is of another model.
    """
    values = read_model(_prefix(str(run_dir), step), ema)
    return values if into is None else put_values(into, values)


def read_model(prefix: str, ema: bool = False) -> dict[str, npt.NDArray[Any]]:
    """Read the values of a checkpoint's model, by their names in the model.

    Of a program that did not train with `gs.fit`: all Variables that are no slots, by their own names.

    Args:
        prefix: The checkpoint.
        ema: See `load`.

    Raises:
        InvalidArgumentError: If there are no moving averages.
    """
    with CheckpointReader(prefix) as reader:
        kinds = {name: saved.kind for name, saved in reader.index.variables.items()}
        names = [name for name, kind in kinds.items() if kind == "variable"]
        own = [name for name in names if name.startswith(f"{SCOPE}/")]
        averages = {name.removesuffix(f"/{EMA}"): name for name in kinds if name.endswith(f"/{EMA}")}
        if ema and not averages:
            raise InvalidArgumentError(f"{prefix} holds no moving averages: train with ema_decay=0.999, say.")
        wanted = [name for name in own or names if name not in averages.values()]
        source = averages if ema else {}
        return {name.removeprefix(f"{SCOPE}/"): reader.get_on_disk(source.get(name, name)) for name in sorted(wanted)}


def saved_step(prefix: str) -> int:
    """Give the step of a checkpoint, by its name; -1 where that does not tell it."""
    number = prefix.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _prefix(path: str, step: int | str | None) -> str:
    """Find a checkpoint.

    Raises:
        NotFoundError: If there is none.
    """
    if step is None and checkpoint_exists(path):
        return path
    storage = storage_for(path)
    directory = storage.join(path, BEST) if step == BEST else path
    steps = {saved_step(prefix): prefix for prefix in prefixes_in(storage, directory)} if _is_there(directory) else {}
    if isinstance(step, str) and step != BEST:
        raise InvalidArgumentError(f"step is {step!r}; it must be a number, 'best', or None for the newest.")
    if isinstance(step, int):
        chosen = steps.get(step)
    else:
        chosen = latest_checkpoint(directory, thorough=False) if steps else None
    if chosen is None:
        none = "it has none" if _is_there(directory) else "there is no such directory"
        there = f"it has those of the steps {', '.join(map(str, sorted(steps)))}" if steps else none
        which = (
            "a checkpoint" if step is None else "a best checkpoint" if step == BEST else f"a checkpoint of step {step}"
        )
        hint = " gs.fit(evaluate=gs.Evaluate(...)) keeps one." if step == BEST else ""
        raise NotFoundError(f"There should be {which} in {directory}; {there}.{hint}")
    return chosen


def _is_there(directory: str) -> bool:
    return storage_for(directory).is_directory(directory)


#: Ending of the file's name -> what it is.
FORMATS = {".pt": "torch", ".pth": "torch", ".safetensors": "safetensors", ".npz": "numpy"}


def export_model(path: str, target: str, *, step: int | str | None = None, ema: bool = False) -> list[str]:
    """Write a checkpoint's model to one file, without slots and steps.

    Args:
        path: A run's directory, or a checkpoint's prefix.
        target: The file; its ending says the format: .pt or .pth for `torch.load`, .safetensors, .npz.
        step: Which checkpoint, as for `gs.load`.
        ema: The moving averages, as for `gs.load`.

    Returns:
        The names of the tensors.

    Raises:
        InvalidArgumentError: For another ending.
        ImportError: If PyTorch is needed, and not installed.
    """
    chosen = next((form for ending, form in FORMATS.items() if str(target).endswith(ending)), None)
    if chosen is None:
        raise InvalidArgumentError(f"{target}: the ending says the format; it must be one of {', '.join(FORMATS)}.")
    values: Mapping[str, npt.NDArray[Any]] = load(path, step=step, ema=ema)
    storage = storage_for(str(target))
    if chosen == "torch":
        torch = require_extra("torch", "A torch state dict", "torch")
        tensors = {name: torch.from_numpy(value) for name, value in values.items()}
        with atomic_write(storage, str(target)) as file:
            torch.save(tensors, file)
    elif chosen == "safetensors":
        directory = directory_of(str(target))
        write_shard(storage, directory, str(target)[len(directory) :].lstrip("/"), values.items())
    else:
        with atomic_write(storage, str(target)) as file:
            np.savez(file, **cast(Any, values))
    return sorted(values)
