"""What `globalstep plan` foretells of modes: formulas against chance, against what was measured, and as a command."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from planned_costs import profile

from globalstep.deploy import cli
from globalstep.deploy.plan.job import Job
from globalstep.deploy.plan.modes import ModeChoices, Pace, expected_secs, forecast_modes
from globalstep.deploy.plan.sizing import make_plan, pace_of
from globalstep.errors import InvalidArgumentError

#: What the runs of docs/modes.md exchange in: so that the first line of the first table is right.
EXCHANGE_SECS = 0.0027
ONE_SLOW = Pace(4, 0.02, slow=1, slow_factor=5.0, alone_secs=EXCHANGE_SECS, loaded_secs=EXCHANGE_SECS)
#: 200 ms instead of 20 for one gradient in 20.
NOW_AND_THEN = Pace(
    4, 0.029, math.sqrt(0.05 * 0.95) * 0.18 / 0.029, alone_secs=EXCHANGE_SECS, loaded_secs=EXCHANGE_SECS
)


def modes(pace, **choices):
    """Forecasts by mode, whatever the modes are given; the first of each."""
    found = {}
    for item in forecast_modes(pace, ModeChoices(**choices)):
        found.setdefault(item.mode.split(",")[0], item)
    return found


@pytest.mark.parametrize("first", [1, 5, 7, 8, 10])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_time_until_so_many_are_ready_is_that_of_workers_that_are_drawn(first, steps):
    pace, rng = Pace(10, 0.1, spread=0.4, slow=3, slow_factor=2.0), random.Random(1)
    sigma = math.sqrt(math.log1p(0.4**2 / steps))

    def drawn():
        secs = [0.1 * steps] * 7 + [0.2 * steps] * 3
        return sorted(rng.lognormvariate(math.log(each) - sigma**2 / 2, sigma) for each in secs)[first - 1]

    rounds = 4000
    assert expected_secs(pace, first, steps) == pytest.approx(sum(drawn() for _ in range(rounds)) / rounds, rel=0.03)


@pytest.mark.parametrize("spread", [1e-6, 0.01, 1.5])
def test_one_worker_alone_takes_what_it_takes_whatever_its_spread(spread):
    assert expected_secs(Pace(1, 0.3, spread), 1) == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize(
    ("pace", "max_staleness", "measured"),
    [
        (ONE_SLOW, None, 142), (ONE_SLOW, 0, 34), (ONE_SLOW, 1, 39), (ONE_SLOW, 4, 40),
        (NOW_AND_THEN, None, 130), (NOW_AND_THEN, 0, 61), (NOW_AND_THEN, 1, 71), (NOW_AND_THEN, 4, 92),
    ],
)  # fmt: skip
def test_what_docs_modes_has_measured_is_foretold_within_15_percent(pace, max_staleness, measured):
    found = modes(pace) if max_staleness is None else modes(pace, max_staleness=max_staleness)
    rate = found["asynchronous" if max_staleness is None else "wait"].steps_sec
    assert rate == pytest.approx(measured, rel=0.15)


def test_local_steps_send_a_push_in_so_many_batches():
    pace = Pace(4, 0.1, alone_secs=0.3, loaded_secs=0.3, step_bytes=8e6)
    found = modes(pace, every=100)
    local, every = found["local steps"], found["asynchronous"]
    assert local.batches_sec == pytest.approx(4 * 100 / (100 * 0.1 + 0.3))
    assert local.steps_sec == pytest.approx(local.batches_sec / 100)
    per_batch = [mode.bytes_sec / mode.batches_sec for mode in (every, local)]
    assert per_batch == [pytest.approx(8e6), pytest.approx(8e4)]
    assert (every.computing, local.computing) == (pytest.approx(0.25), pytest.approx(10 / 10.3))
    rounds = forecast_modes(pace, ModeChoices(every=100))[-1]
    assert rounds.batches_sec == pytest.approx(local.batches_sec)


def test_a_step_of_all_but_the_slow_goes_at_the_pace_of_the_quick():
    pace = Pace(8, 0.1, slow=1, slow_factor=10.0, alone_secs=0.01, loaded_secs=0.01, step_bytes=1e6)
    everyone, quick = (
        next(item for item in forecast_modes(pace, ModeChoices()) if item.mode == f"synchronous, {count} of 8")
        for count in (8, 7)
    )
    assert everyone.steps_sec == pytest.approx(1 / 1.01)
    assert quick.steps_sec == pytest.approx(1 / 0.11)
    assert quick.batches_sec == pytest.approx(7 / 0.11)
    # What the slow one sends comes too late.
    assert quick.bytes_sec == pytest.approx((7 / 0.11 + 1 / 1.01) * 1e6)
    asked = [item.mode for item in forecast_modes(pace, ModeChoices(replicas=5))]
    assert [mode for mode in asked if mode.startswith("sync")] == ["synchronous, 5 of 8"]


def test_nobody_goes_faster_for_waiting_and_who_may_be_further_ahead_waits_less():
    pace = Pace(8, 0.1, 0.5, alone_secs=0.02, loaded_secs=0.02)
    rates = [modes(pace, max_staleness=most)["wait"].steps_sec for most in (0, 1, 4, 50)]
    assert rates == sorted(rates)
    found = modes(pace, max_staleness=50)
    assert found["synchronous"].batches_sec < found["wait"].batches_sec < found["asynchronous"].batches_sec
    fewer = [modes(pace, replicas=count)["synchronous"].steps_sec for count in (8, 6, 4, 1)]
    assert fewer == sorted(fewer)


def test_no_mode_pushes_more_than_the_ps_tasks_allow():
    pace = Pace(100, 0.01, alone_secs=0.001, loaded_secs=0.001, queue_secs=1 / 500, allows=500.0)
    found = modes(pace, max_staleness=3)
    assert found["asynchronous"].steps_sec == found["wait"].steps_sec == pytest.approx(500)
    assert found["asynchronous"].computing == pytest.approx(0.05)
    assert found["synchronous"].batches_sec < 500
    assert found["local steps"].steps_sec == pytest.approx(100 / 0.501)


@pytest.mark.parametrize(
    ("transfer_secs", "pushes", "took"),
    [(0.0, 1, 0.5), (0.0, 4, 0.8), (0.3, 4, 0.6), (0.4, 4, 0.5), (0.5, 4, 0.5)],
)
def test_pushes_at_the_same_time_wait_for_the_ps_tasks_but_not_for_each_others_links(transfer_secs, pushes, took):
    pace = Pace(4, 0.1, alone_secs=0.5, loaded_secs=0.5, transfer_secs=transfer_secs, queue_secs=0.1)
    assert pace.together_secs(pushes) == pytest.approx(took)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Pace(4, 0.1, slow=5), "5 of 4 workers cannot be slow"),
        (lambda: Pace(4, 0.1, slow=1, slow_factor=0.5), "at least as long as the others, not 0.5"),
        (lambda: Pace(4, 0.1, slow=1, slow_factor=math.nan), "not nan"),
        (lambda: Pace(4, 0.0), "no time at all"),
        (lambda: ModeChoices(every=0), "every is 0; it must be at least 1"),
        (lambda: ModeChoices(max_staleness=-1), "max_staleness is -1"),
        (lambda: forecast_modes(Pace(4, 0.1), ModeChoices(replicas=5)), "5 replicas of 4 workers"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(InvalidArgumentError, match=said):
        wrong()


def test_the_pace_is_that_of_the_plan():
    job = Job(1e6, 6, 0.05, 0.1, nic_gbps=1.0, transport="tcp")
    plan = make_plan(job, profile(), 2, 0)
    pace = pace_of(plan, profile(), 1, 3.0)
    assert modes(replace(pace, slow=0))["asynchronous"].steps_sec == pytest.approx(plan.chosen.steps_sec, rel=0.03)
    # 4 MB each way, over a link of its own, and half of it over that of each PS task.
    assert pace.transfer_secs == pytest.approx(2 * 4e6 / (1e9 / 8 * 0.95))
    assert pace.queue_secs == pytest.approx(pace.transfer_secs / 2)
    assert pace.transfer_secs < pace.alone_secs < pace.loaded_secs
    assert pace.allows == pytest.approx(min(rate for name, rate in plan.chosen.bounds.items() if "link" in name))
    assert pace.groups == [(5, 0.05), (1, pytest.approx(0.15))]


JOB = ["plan", "--params", "1e6", "--workers", "4", "--step-time", "0.05", "--ps", "1"]


@pytest.fixture
def ask(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "profile.json"
    profile().save(path)

    def ask(*arguments):
        code = cli.main([*JOB, "--profile", str(path), *arguments])
        return code, capsys.readouterr()

    return ask


def test_a_table_of_modes_comes_where_it_is_asked_for(ask):
    assert "COMPUTING" not in ask()[1].out
    for asked in (["--modes"], ["--slow-workers", "1"], ["--local-steps", "9"], ["--max-staleness", "0"]):
        code, said = ask(*asked)
        assert (code, said.err) == (0, "")
        assert "COMPUTING" in said.out
        assert "synchronous, 4 of 4" in said.out
        assert ("synchronous, 3 of 4" in said.out) == ("--slow-workers" in asked)


def test_modes_are_in_the_json(ask):
    assert json.loads(ask("--json")[1].out)["modes"] == []
    found = json.loads(ask("--json", "--replicas", "3", "--local-steps", "20")[1].out)["modes"]
    assert [item["mode"] for item in found] == [
        "asynchronous", "wait, max_staleness=4", "synchronous, 3 of 4", "local steps, every=20",
        "local steps, every=20, together",
    ]  # fmt: skip
    assert all(item["bytes_sec"] > 0 for item in found)


def test_what_cannot_be_foretold_is_said_in_a_line(ask):
    code, said = ask("--replicas", "5")
    assert (code, said.out) == (1, "")
    assert said.err.startswith("globalstep plan: 5 replicas of 4 workers")
    assert "add --accelerator" in ask("--shared-cores", "2", "--modes")[1].err
    assert ask("--shared-cores", "2", "--accelerator", "--modes")[0] == 0
