"""A trainer whose job is done by others: it hears of it, and ends as if it had come to the end itself."""

import contextlib
import json

import numpy as np
import pytest
from processes import free_addresses

import globalstep as gs
from globalstep.errors import AbortedError, JobDoneError
from globalstep.ps.server import PSOptions, PSServer
from globalstep.worker.frameworks import step_options
from globalstep.worker.waits.contributing import UnitOfWork

PARAMS = {"w": np.zeros(3, np.float32)}


def loss(params, _):
    return 1.0, {"w": -np.ones(3, np.float32)}


def done(*_):
    raise JobDoneError("Nothing is left to do.")


@pytest.mark.parametrize(
    ("units", "lost_in"), [(None, "loss"), (gs.WorkUnits(2), "loss"), (gs.WorkUnits(2), "take_unit")]
)
def test_a_job_that_is_done_when_the_session_is_made_anew_ends_training(monkeypatch, units, lost_in):
    """Found by the soak: all PS tasks and this worker's session were lost, and the others had come to the end."""
    lost = []

    def lose(*_):
        if lost:
            raise lost.pop()

    def losing_loss(params, batch):
        lose()
        return loss(params, batch)

    if lost_in == "take_unit":
        take_unit = step_options.take_unit
        monkeypatch.setattr(step_options, "take_unit", lambda *given: lose() or take_unit(*given))
    with gs.Trainer(PARAMS, losing_loss, optimizer=gs.optim.SGD(1.0), steps=9, units=units) as training:
        take = training.step if units is None else lambda one: training.unit([one])
        take(0)
        monkeypatch.setattr(training._loop._creator, "create_session", done)
        lost.append(AbortedError("A PS task lost what this session trained."))
        assert take(0) == 1.0
        assert training.done
    assert training.result.loss == 1.0


def test_a_chief_that_gets_no_unit_writes_its_summaries(tmp_path, monkeypatch):
    """Found by the soak: the loss was not fed to the hooks' run, where a summary was due."""
    units = iter([UnitOfWork(unit=0, base=0)])
    take_unit = step_options.take_unit
    monkeypatch.setattr(step_options, "take_unit", lambda *given: next(units, None) or take_unit(*given))
    options = {"units": gs.WorkUnits(2), "run_dir": tmp_path}
    with gs.Trainer(PARAMS, loss, optimizer=gs.optim.SGD(1.0), steps=2, **options) as training:
        training._step = -1  # others have made a step since
        training.unit([0])
        while not training.done:
            training.unit([0])
    assert training.result.step == 2


def test_a_worker_that_comes_after_the_end_has_the_last_checkpoints_values(monkeypatch, tmp_path, caplog):
    """Its result had step 0 and the values that it was given, without a word."""
    gs.fit(PARAMS, loss, [0] * 8, optimizer=gs.optim.SGD(1.0), steps=5, run_dir=tmp_path)
    cluster = {"ps": free_addresses(1), "worker": free_addresses(2)}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    late = gs.fit(PARAMS, loss, [0] * 8, optimizer=gs.optim.SGD(1.0), steps=5, run_dir=tmp_path)
    assert (late.step, late.is_chief, late.model["w"].tolist()) == (5, False, [5, 5, 5])
    assert "last values" not in caplog.text


@pytest.mark.parametrize("evaluator", [{}, {"evaluator": ["127.0.0.1:1"]}])
def test_a_chief_that_comes_back_when_ps_tasks_have_ended_makes_the_last_evaluation(monkeypatch, tmp_path, evaluator):
    """It was killed in it; another PS task waits for the chief to leave. An evaluator task makes its own."""
    options = {"optimizer": gs.optim.SGD(1.0), "steps": 5, "run_dir": tmp_path}
    evaluate = gs.Evaluate([0], {"w": lambda params, _: params["w"][0]})
    servers = [PSServer(PSOptions(grace_secs=0.2)) for _ in range(2)]
    with contextlib.ExitStack() as served:
        for server in servers:
            server.start()
            served.callback(server.close)
        cluster = {"ps": [server.address for server in servers], "chief": free_addresses(1), **evaluator}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
        made = [] if evaluator else [{"step": 5, "metrics": {"w": 5.0}}]
        assert gs.fit(PARAMS, loss, [0] * 8, evaluate=evaluate, **options).history == made
        (tmp_path / "evaluations.json").write_text("[]")
        servers[0].close()
        again = gs.fit(PARAMS, loss, [0] * 8, evaluate=evaluate, **options)
    assert (again.step, again.is_chief, again.model["w"].tolist()) == (5, True, [5, 5, 5])
    assert again.history == made
