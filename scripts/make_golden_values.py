"""Make tests/golden/values/*.npz from an installed TensorFlow: what its functions give, and their gradients.

    python -m venv /some/where && /some/where/bin/pip install tensorflow-cpu==2.21.0
    /some/where/bin/python scripts/make_golden_values.py [GROUP ...]

The data is committed and the tests need no TensorFlow. The cases are in the *_cases.py there.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
import types

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import lookup_ops

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "values"
sys.path.insert(0, str(GOLDEN))
import value_cases  # noqa: E402

v1 = tf.compat.v1


def main(groups: list[str]) -> None:
    """Write the files of some groups; of all without an argument."""
    v1.disable_v2_behavior()
    # What 1.x had and compat.v1 has under another name.
    v1.image.transpose_image = v1.image.transpose
    v1.contrib = types.SimpleNamespace(lookup=lookup_ops)
    every = sorted(path.stem.removesuffix("_cases") for path in GOLDEN.glob("*_cases.py") if path.stem != "value_cases")
    for group in groups or every:
        arrays = {"tensorflow_version": np.array(tf.__version__)}
        for name, case in importlib.import_module(f"{group}_cases").CASES.items():
            with v1.Graph().as_default(), v1.Session() as session:
                results = value_cases.run(v1, case, session)
            arrays.update({f"{name}/{key}": value for key, value in results.items()})
        np.savez_compressed(GOLDEN / f"{group}.npz", **arrays)
        print(group, len(arrays) - 1, "arrays")


if __name__ == "__main__":
    main(sys.argv[1:])
