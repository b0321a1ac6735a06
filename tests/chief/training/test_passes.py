"""A loop over epochs that asks for the batches of each: every pass begins where the one before has ended."""

import contextlib
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from small_model import wait_for_saves

import globalstep as gs
from globalstep.chief.sessions import other_tasks
from globalstep.ps.server import PSOptions, PSServer

DATA = [np.full(3, at, np.float32) for at in range(6)]


def trainer(seen, **options):
    def loss(params, batch):
        seen.append(int(batch[0]))
        return float(batch.sum()), {"w": np.ones(3, np.float32)}

    return gs.Trainer({"w": np.zeros(3, np.float32)}, loss, optimizer=gs.optim.SGD(0.1), **options)


def unsized():
    yield from DATA


def own(rank, epoch, start):
    return DATA[start:]


@pytest.mark.parametrize("data", [DATA, unsized, own])
@pytest.mark.parametrize("per_step", [1, 2])
def test_each_pass_has_all_batches(data, per_step):
    seen = []
    with trainer(seen) as training:
        for _ in range(3):
            if per_step == 1:
                for batch in training.batches(data, epochs=1):
                    training.step(batch)
            else:
                pairs = training.batches(data, epochs=1, per_step=2)
                for batch in pairs:
                    training.step(batch, next(pairs))
    assert seen == 3 * list(range(6))


@pytest.mark.parametrize("data", [DATA, unsized, own])
@pytest.mark.parametrize("stop", [4, 6, 9, 14])
def test_a_run_that_goes_on_has_each_batch_of_each_pass_once(tmp_path, data, stop):
    seen = []
    for steps in (stop, 18):
        with trainer(seen, steps=steps, run_dir=tmp_path) as training:
            for _ in range(3):
                for batch in training.batches(data, epochs=1):
                    training.step(batch)
                if training.done:
                    break
    assert seen == 3 * list(range(6))


def test_a_pass_that_is_left_early_is_over():
    seen = []
    with trainer(seen) as training:
        for _ in range(2):
            for batch in training.batches(DATA, epochs=1):
                training.step(batch)
                if batch[0] == 2:
                    break
    assert seen == [0, 1, 2, 0, 1, 2]


def test_two_iterables_may_be_gone_through_side_by_side():
    seen = []
    others = [batch + 10 for batch in DATA]
    with trainer(seen) as training:
        for _ in range(2):
            for one, other in zip(training.batches(DATA, epochs=1), training.batches(others, epochs=1), strict=False):
                training.step(one, other)
    assert seen == 2 * [number for at in range(6) for number in (at, at + 10)]


@pytest.fixture
def ps(monkeypatch):
    """Starts, or starts again without its state, the PS task of a cluster whose worker 0 is this process."""
    served = []

    def start(workers=1):
        address = served[0].address if served else "127.0.0.1:0"
        for server in served:
            server.close()
        served[:] = [PSServer(PSOptions(bind=address, grace_secs=0.2))]
        served[0].start()
        cluster = {"ps": [served[0].address], "worker": [f"127.0.0.1:{port}" for port in range(1, workers + 1)]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))

    yield start
    served[0].close()


def by_rank(rank):
    return DATA


@pytest.mark.parametrize("call", ["fit", "each pass"])
@pytest.mark.parametrize("data", [DATA, own, by_rank])
@pytest.mark.parametrize(("lost", "restored"), [(7, 4), (8, 8), (10, 8), (3, 0)])
def test_where_a_run_goes_back_it_has_the_batches_from_there_again(ps, tmp_path, call, data, lost, restored):
    """Also those of a pass that was over: the step that was under way takes the place of the first of them."""
    ps()
    seen = []

    def loss(params, batch):
        seen.append(int(batch[0]))
        if len(seen) == lost + 1:
            wait_for_saves()
            ps()
        return float(batch.sum()), {"w": np.ones(3, np.float32)}

    options = {"optimizer": gs.optim.SGD(0.1), "run_dir": tmp_path, "checkpoint_every_steps": 4}
    if call == "fit":
        result = gs.fit({"w": np.zeros(3, np.float32)}, loss, data, epochs=2, **options)
    else:
        with gs.Trainer({"w": np.zeros(3, np.float32)}, loss, steps=12, **options) as training:
            for _ in range(2):
                for batch in training.batches(data, epochs=1):
                    training.step(batch)
        result = training.result
    assert result.step == 12
    assert result.model["w"].tolist() == pytest.approx([-1.2] * 3)
    assert seen == [at % 6 for at in (*range(lost + 1), lost, *range(restored + 1, 12))]


@pytest.mark.parametrize("came", [False, True])
def test_a_run_says_that_batches_of_workers_that_never_came_or_stand_still_are_left_out(ps, monkeypatch, caplog, came):
    monkeypatch.setattr(other_tasks, "TO_COME_SECS", 0.0)
    monkeypatch.setattr(other_tasks, "IDLE_SECS", 0.0)
    ps(workers=2)
    seen, options = [], {"optimizer": gs.optim.SGD(0.1)}

    def loss(params, batch):
        if came and not seen:
            config = json.loads(os.environ["TF_CONFIG"])
            monkeypatch.setenv("TF_CONFIG", json.dumps({**config, "task": {"type": "worker", "index": 1}}))
            others.enter_context(gs.Trainer({"w": np.zeros(3, np.float32)}, loss, steps=12, **options))
        seen.append(int(batch[0]))
        return 0.0, {"w": np.ones(3, np.float32)}

    with contextlib.ExitStack() as others:
        result = gs.fit({"w": np.zeros(3, np.float32)}, loss, DATA, epochs=2, **options)
    assert (result.step, len(seen)) == (11, 11)
    assert "Training ended at step 11 of 12: the batches of the rest were kept for workers that died" in caplog.text
    assert "With steps=12 in place of epochs those that are here go on to it" in caplog.text


def test_of_a_divided_loader_the_parts_of_all_workers_make_the_steps(ps, monkeypatch):
    class Divided(list):
        """Stands for a DataLoader with a DistributedSampler."""

        sampler = SimpleNamespace(num_replicas=2, rank=0)

    def loss(params, batch):
        return 0.0, {"w": np.ones(3, np.float32)}

    monkeypatch.setattr(other_tasks, "TO_COME_SECS", 0.0)
    ps(workers=2)
    together = gs.train.SyncReplicasOptimizer(gs.optim.SGD(0.1), 1)
    assert gs.fit({"w": np.zeros(3, np.float32)}, loss, Divided(DATA), optimizer=together, epochs=2).step == 24
