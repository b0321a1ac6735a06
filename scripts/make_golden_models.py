"""Make tests/golden/metrics.npz from an installed TensorFlow: its metrics, batch by batch.

    python -m venv /some/where && /some/where/bin/pip install tensorflow-cpu==2.21.0
    /some/where/bin/python scripts/make_golden_models.py

The data is committed and the tests need no TensorFlow. The cases are in tests/golden/golden_metrics.py.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import tensorflow as tf

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))
import golden_metrics  # noqa: E402

v1 = tf.compat.v1


def run_metrics() -> dict[str, np.ndarray]:
    """Give the updates of each metric, its value after them, and the names of its Variables."""
    found = {}
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
        found.update({f"{case.name}/{key}": array for key, array in arrays.items()})
    return found


def main() -> None:
    """Write the files."""
    v1.disable_v2_behavior()
    for name, arrays in {"metrics": run_metrics()}.items():
        arrays["tensorflow_version"] = np.array(tf.__version__)
        np.savez_compressed(GOLDEN / f"{name}.npz", **arrays)
        print(name, len(arrays) - 1, "arrays")


if __name__ == "__main__":
    main()
