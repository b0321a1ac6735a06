"""Files of a checkpoint's model for other programs: a torch state dict, safetensors, numpy's npz.

Layer: chief.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from globalstep.chief.training.saved_model import load
from globalstep.errors import InvalidArgumentError
from globalstep.files.shard_file import write_shard
from globalstep.files.storage import atomic_write, directory_of, storage_for
from globalstep.worker.frameworks.training_model import require_extra

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
