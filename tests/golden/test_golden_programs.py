"""Loops and recurrent cells give TensorFlow's numbers; scripts/make_golden_programs.py made the data."""

import pathlib

import loop_cases
import numpy as np
import program_cases
import pytest
import recurrence_cases
from rounding import assert_equal_but_for_rounding

import globalstep as gs

HERE = pathlib.Path(__file__).parent
CASES = {
    **{("loops", name): case for name, case in loop_cases.CASES.items()},
    **{("recurrence", name): case for name, case in recurrence_cases.CASES.items()},
}


@pytest.fixture(scope="module")
def golden():
    return {name: np.load(HERE / f"{name}.npz") for name in ("loops", "recurrence")}


@pytest.mark.parametrize(("group", "name"), CASES)
def test_a_program_gives_tensorflows_numbers(golden, group, name):
    """Names and shapes of Variables, outputs, gradients, and three steps of training."""
    found = program_cases.run(gs, gs.nn.rnn_cell, CASES[group, name])
    data = golden[group]
    wanted = {key.partition("/")[2]: data[key] for key in data.files if key.partition("/")[0] == name}
    assert sorted(found) == sorted(wanted)
    for key, value in wanted.items():
        if key == "names":
            assert found[key].tolist() == value.tolist()
            continue
        assert_equal_but_for_rounding(found[key], value, 170, key)
