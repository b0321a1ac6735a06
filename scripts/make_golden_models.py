"""Make metrics.npz and layers.npz of tests/golden/models from an installed TensorFlow, step by step.

    python -m venv /some/where && /some/where/bin/pip install tensorflow-cpu==2.21.0 tf-keras==2.21.0 tf-slim==1.1.0
    /some/where/bin/python scripts/make_golden_models.py

The data is committed and the tests need no TensorFlow. The cases are in golden_metrics.py and golden_layers.py
there. `tf.compat.v1.layers` is in tf-keras today; tf-slim is what was
`tf.contrib.slim` and `tf.contrib.layers`.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
import tf_slim
from tensorflow.python.framework import ops, tensor

# tf-slim, of 2020, and TensorFlow ask for things where they were then.
ops.Tensor = tensor.Tensor
for _name in ("", ".base", ".convolutional", ".core", ".normalization", ".pooling"):
    sys.modules[f"tf_keras.legacy_tf_layers{_name}"] = importlib.import_module(f"tf_keras.src.legacy_tf_layers{_name}")

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "models"
sys.path.insert(0, str(GOLDEN))
import golden_layers  # noqa: E402
import golden_metrics  # noqa: E402

v1 = tf.compat.v1


def run_metrics() -> dict[str, np.ndarray]:
    """Give the updates of each metric, its value after them, and the names of its Variables."""
    results = {}
    for case in golden_metrics.metric_cases():
        with v1.Graph().as_default(), v1.Session() as session:
            arrays = golden_metrics.run(
                case,
                v1.metrics,
                v1.placeholder,
                session,
                v1.local_variables_initializer,
                lambda: [variable.op.name for variable in v1.local_variables()],
            )
        results.update({f"{case.name}/{key}": array for key, array in arrays.items()})
    return results


def run_layers() -> dict[str, np.ndarray]:
    """Give what each small model gives."""
    results = {}
    for case in golden_layers.layer_cases():
        with v1.Graph().as_default(), v1.Session() as session:
            arrays = golden_layers.run(case, v1, tf_slim, session)
        results.update({f"{case.name}/{key}": array for key, array in arrays.items()})
    return results


def main() -> None:
    """Write the files."""
    v1.disable_v2_behavior()
    for name, arrays in {"metrics": run_metrics(), "layers": run_layers()}.items():
        arrays["tensorflow_version"] = np.array(tf.__version__)
        np.savez_compressed(GOLDEN / f"{name}.npz", **arrays)
        print(name, len(arrays) - 1, "arrays")


if __name__ == "__main__":
    main()
