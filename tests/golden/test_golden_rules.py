"""Update rules, driven directly, follow TensorFlow's trajectories; scripts/make_golden.py made the data."""

import golden_cases as cases
import numpy as np
import pytest
from golden_optimizers import DATA, assert_follows

import globalstep as gs
from globalstep.rules import get_rule, merge_rows
from globalstep.tf1.variables.training_util import create_global_step


def optimizer_of(case):
    """The optimizer of the case, in the current graph."""
    arguments = dict(case.arguments)
    if case.optimizer == "AdagradDA":
        arguments["global_step"] = create_global_step()
    return getattr(gs.train, f"{case.optimizer}Optimizer")(**arguments)


def drive_rule(case):
    """Give every value, slot and scalar after each step, with the optimizer's own rule and numbers."""
    with gs.Graph().as_default():
        optimizer = optimizer_of(case)
        hypers, slots, scalars = dict(optimizer.hypers()), optimizer.slots(), dict(optimizer.scalars())
    rule = get_rule(optimizer.rule())
    assert tuple(slot.name for slot in slots) == rule.slots
    assert tuple(scalars) == rule.scalars
    values = cases.initial_values()
    arrays = tuple(np.full(cases.SHAPE, slot.initial, np.float32) for slot in slots)
    state = {name: np.float32(initial) for name, initial in scalars.items()}
    history = []
    for step in range(cases.STEPS):
        given = {**hypers, **state}
        if "global_step" in given:
            given["global_step"] = step + 1
        if case.decayed:
            given["learning_rate"] *= cases.DECAY_RATE ** (step / cases.DECAY_STEPS)
        if case.sparse:
            indices, rows = (given[step] for given in cases.sparse_gradients())
            if rule.merges_duplicates:
                indices, rows = merge_rows(indices, rows)
            rule.sparse(values, arrays, indices, rows, given)
        else:
            flat = tuple(array.reshape(-1) for array in arrays)
            rule.dense(values.reshape(-1), flat, cases.dense_gradients()[step].reshape(-1), given)
        state = rule.advance_scalars(state, given)
        entry = {"values": values, **dict(zip(rule.slots, arrays, strict=True)), **state}
        history.append({name: np.copy(array) for name, array in entry.items()})
    return {name: np.stack([entry[name] for entry in history]) for name in history[0]}


@pytest.mark.parametrize("case", list(cases.optimizer_cases()), ids=lambda case: case.name)
def test_a_rule_follows_tensorflow(case):
    assert_follows(case, drive_rule(case))


@pytest.mark.parametrize("case", list(cases.keras_cases()), ids=lambda case: case.name)
def test_a_later_rule_follows_keras(case):
    wanted = DATA[case.name]
    found = drive_rule(case)["values"]
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6 * np.abs(wanted).max())


def test_no_case_is_missing():
    expected = {case.name for case in (*cases.optimizer_cases(), *cases.keras_cases())}
    assert {name.split("/")[0] for name in DATA.files} - {"tensorflow_version"} == expected
