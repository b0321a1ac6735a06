"""Layers give TensorFlow's numbers, under its names; scripts/make_golden_models.py made the data."""

import pathlib

import golden_layers
import numpy as np
import pytest
from rounding import assert_equal_but_for_rounding

import globalstep as gs

DATA = np.load(pathlib.Path(__file__).parent / "layers.npz")
CASES = golden_layers.layer_cases()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_layer_follows_tensorflow(case):
    with gs.Session() as session:
        found = golden_layers.run(case, gs, gs.contrib.slim, session)
    wanted = {key.removeprefix(f"{case.name}/"): DATA[key] for key in DATA.files if key.startswith(f"{case.name}/")}
    for key in ("names", "trained", "model", "losses", "updates", "shape"):
        assert found[key].tolist() == wanted[key].tolist(), key
    assert set(found) == set(wanted)
    for key in set(found) - {"names", "trained", "model", "losses", "updates", "shape"}:
        assert_equal_but_for_rounding(found[key], wanted[key], 170, key, terms=0.1)
