"""What TensorFlow's optimizers did in the golden cases, and how near the library comes to it."""

import pathlib

import numpy as np

DATA = np.load(pathlib.Path(__file__).parent / "optimizers.npz")
ROOTS = ("Ftrl", "RMSProp")


def assert_follows(case, found):
    """Relative to the size of the array: elements that pass through 0 have no relative error."""
    bound = 1e-5 if case.optimizer in ROOTS else 1e-6
    for name, history in found.items():
        wanted = DATA[f"{case.name}/{name}"]
        np.testing.assert_allclose(
            history, wanted, rtol=bound, atol=bound * np.abs(wanted).max(), err_msg=f"{case.name}/{name}"
        )
