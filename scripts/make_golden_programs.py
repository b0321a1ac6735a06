"""Make tests/golden/loops.npz and recurrence.npz from an installed TensorFlow, by running small programs in it.

    python -m venv /some/where && /some/where/bin/pip install tensorflow-cpu==2.21.0
    /some/where/bin/python scripts/make_golden_programs.py

The data is committed and the tests need no TensorFlow. The programs are in tests/golden/*_cases.py.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.keras.layers.legacy_rnn import rnn_cell_impl, rnn_cell_wrapper_impl

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))
import loop_cases  # noqa: E402
import program_cases  # noqa: E402
import recurrence_cases  # noqa: E402


class Cells:
    """The cells of TensorFlow 1.x, as they are kept in 2.21."""

    def __getattr__(self, name: str) -> object:
        return getattr(rnn_cell_impl, name, None) or getattr(rnn_cell_wrapper_impl, name)


def main() -> None:
    """Write both files."""
    tf.compat.v1.disable_v2_behavior()
    for name, cases in (("loops", loop_cases.CASES), ("recurrence", recurrence_cases.CASES)):
        arrays = {}
        for case, build in cases.items():
            print(name, case)
            for key, value in program_cases.run(tf.compat.v1, Cells(), build).items():
                arrays[f"{case}/{key}"] = value
        np.savez_compressed(GOLDEN / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
