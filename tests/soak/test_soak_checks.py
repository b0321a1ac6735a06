"""The soak's own checks: each thing that may be wrong at the end is found (rung 1)."""

import random

import numpy as np
import pytest
from soak_checks import expected_values, fit_faults, task_faults, value_faults
from soak_fit import score
from soak_job import COLUMNS, ROWS, TASKS, drawn_rows, rows_of, table_faults
from soak_windows import END, Windows

import globalstep as gs

LAST = 30


@pytest.fixture(scope="module")
def expected():
    return expected_values(LAST)


@pytest.fixture
def saved(expected):
    """What a run without a fault leaves."""
    rng = random.Random(1)
    table = np.zeros((ROWS, COLUMNS), "f4")
    for step in range(LAST):
        np.add.at(table, [*rows_of(step % TASKS), *drawn_rows(rng)], 1.0)
    return {name: np.array(value) for name, value in expected.items()} | {"table": table}


def test_the_expected_values_are_those_of_the_formulas(expected):
    assert np.all(expected["sum_1000"] == LAST)
    assert np.all(expected["momentum"] == LAST * (LAST + 1) / 2)
    assert np.all(expected["momentum/Momentum"] == -LAST)
    assert expected["counter"] == 2 * LAST
    assert expected["global_step"] == LAST
    assert 0 < expected["adam"][0] < 1
    assert len(expected) > 10


def test_a_run_without_a_fault_is_exact(saved, expected):
    assert not list(value_faults(saved, expected, LAST))
    assert not list(task_faults(saved["table"], _pushes()))


def _pushes():
    tasks = ["/job:chief/task:0", *(f"/job:worker/task:{index}" for index in range(TASKS - 1))]
    return dict.fromkeys(tasks, LAST // TASKS)


@pytest.mark.parametrize("name", ["sum_30000", "momentum/Momentum", "scheduled", "adam", "adam/Adam_1", "beta1_power"])
def test_one_bit_that_is_wrong_is_found(saved, expected, name):
    saved[name].reshape(-1).view(np.uint8)[-4] ^= 1
    assert [fault.partition(" ")[0] for fault in value_faults(saved, expected, LAST)] == [name]


def test_a_push_that_one_ps_task_lost_is_found(saved):
    saved["table"][rows_of(2)[1]] -= 1
    assert any("the rows of task 2" in fault for fault in table_faults(saved["table"], LAST))


def test_a_push_that_was_applied_twice_is_found(saved):
    saved["table"][rows_of(2)] += 1
    assert any("count 31 pushes" in fault for fault in table_faults(saved["table"], LAST))
    assert [fault.partition(";")[0] for fault in task_faults(saved["table"], _pushes())] == [
        "the rows of /job:worker/task:1 count 7 pushes, the journal has 6"
    ]


def test_a_torn_row_is_found(saved):
    saved["table"][5, 3] += 1
    assert "rows of the table are torn" in table_faults(saved["table"], LAST)


def test_a_task_of_every_role_is_killed_in_every_window_of_the_end(tmp_path):
    windows, killed, now = Windows(tmp_path, random.Random(3)), [], 0.0
    for window in END:
        task = "worker:1" if window == "leaving" else "chief:0"
        for pid in range(4):
            mark = tmp_path / f"{window}={task}={pid}"
            mark.touch()
            while mark.exists():
                killed += windows.due(now, ["ps:0", "ps:1", "chief:0", "worker:0", "worker:1"])
                now += 0.5
        killed += windows.due(now, [])
    assert len(killed) == 4 * len(END)
    for window in END:
        roles = {"all PS" if len(names) > 1 else names[0].partition(":")[0] for at, names in killed if at == window}
        assert roles == {"ps", "chief", "worker", "all PS"}


@pytest.fixture
def fitted(tmp_path):
    """The directory of a job of gs.fit without a fault."""

    def loss(params, _):
        return 1.0, {"w": -np.ones(3, np.float32)}

    evaluate = gs.Evaluate([0], {"score": lambda params, _: score(int(params["w"][0]), LAST)}, every_steps=60)
    params = {"w": np.zeros(3, np.float32)}
    gs.fit(params, loss, [0], optimizer=gs.optim.SGD(1.0), steps=LAST, run_dir=tmp_path, evaluate=evaluate)
    return tmp_path


def test_a_fit_without_a_fault_is_exact(fitted):
    assert not list(fit_faults(fitted, LAST, "fit"))


def test_what_is_wrong_with_a_fit_is_found(fitted):
    history = fitted / "evaluations.json"
    history.write_text(history.read_text().replace(f'"step": {LAST}', '"step": 29'))
    found = " ".join(fit_faults(fitted, LAST + 1, "fit"))
    for text in ("w is [30.]; 31 steps make it 31", "evaluated were steps [29]", "the evaluation at step 29 found",
                 "the best checkpoint is that of step 29"):  # fmt: skip
        assert text in found
