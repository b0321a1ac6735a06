"""What a job that counts has counted: each of its pushes adds 1 to every element."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.tf1.variables.checkpoint_variables import list_variables, load_checkpoint


def assert_counted(run: Path, step: int, printed: str = "") -> None:
    """Fail unless the newest checkpoint is of a step, and holds exactly the pushes up to it."""
    prefix = latest_checkpoint(str(run))
    assert prefix == str(run / f"model.ckpt-{step}"), printed
    reader = load_checkpoint(prefix)
    for name, _ in list_variables(prefix):
        assert np.all(reader.get_tensor(name) == step), f"{name}\n{printed}"
