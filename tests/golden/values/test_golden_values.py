"""Functions give TensorFlow's values and gradients; scripts/make_golden_values.py made the data."""

import importlib
import pathlib

import numpy as np
import pytest
import value_cases
from rounding import assert_equal_but_for_rounding

import globalstep as gs

HERE = pathlib.Path(__file__).parent
GROUPS = sorted(path.stem for path in HERE.glob("*.npz"))
CASES = {
    (group, name): case for group in GROUPS for name, case in importlib.import_module(f"{group}_cases").CASES.items()
}


@pytest.fixture(scope="module")
def golden():
    found = {}
    for group in GROUPS:
        with np.load(HERE / f"{group}.npz") as data:
            for key, value in data.items():
                name, _, what = key.partition("/")
                found.setdefault((group, name), {})[what] = value
    return found


@pytest.mark.parametrize(("group", "name"), CASES)
def test_a_function_gives_tensorflows_values(golden, group, name):
    with gs.Graph().as_default(), gs.Session() as session:
        found = value_cases.run(gs, CASES[group, name], session)
    wanted = golden[group, name]
    assert {key for key in wanted if not key.endswith("-shape")} <= set(found)
    for key, value in wanted.items():
        if key.endswith("-shape"):
            # What is known before a run may be less or more than TensorFlow knows, but not something else.
            known = found.get(key, value)
            assert len(known) == len(value)
            assert all(a == b or -1 in (a, b) for a, b in zip(known, value, strict=True))
            continue
        assert found[key].dtype.kind == value.dtype.kind, key
        assert found[key].shape == value.shape, key
        if value.dtype.kind == "S":
            assert found[key].tolist() == value.tolist(), key
            continue
        assert_equal_but_for_rounding(found[key], value, 250, key, terms=0.1)
