"""Where the Variables of a run are: on one PS task up to a bound, and where they were whatever comes after."""

import json

import numpy as np
import pytest
from served_tasks import starting
from small_model import LocalCluster, build

import globalstep as gs
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.tf1.ops.summaries import SummaryWriterCache

SPREAD, TOGETHER = gs.RunPolicy(spread_above=0), gs.RunPolicy()
PARAMETERS = {name: np.full(4, at, np.float32) for at, name in enumerate("abcd")}


@pytest.fixture
def cluster():
    """Give PS tasks in this process, and end them."""
    made = []

    def start(shards):
        made.append(LocalCluster(shards))
        return made[-1]

    yield start
    for one in made:
        one.close()
    SummaryWriterCache.clear()


def places(client):
    """Give which PS tasks hold Variables."""
    return set(client.where.values())


def session(cluster, policy, *, is_chief=True, directory=None):
    """Train the model of a graph of its own in a session, as the chief or as a worker."""
    with gs.Graph().as_default():
        model = build()
        config = gs.ConfigProto(run_policy=policy)
        made = gs.train.MonitoredTrainingSession(
            cluster.target,
            is_chief,
            config=config,
            checkpoint_dir=directory and str(directory),
            log_step_count_steps=None,
        )
    return model, made


def test_a_small_model_is_on_one_ps_task_and_its_push_goes_there_alone(cluster, monkeypatch):
    monkeypatch.delenv("GLOBALSTEP_RUN_POLICY")
    with gs.connect(cluster(3).target) as client:
        client.declare(PARAMETERS, gs.optim.Adam(0.1))
        assert client.push({name: np.ones(4) for name in PARAMETERS}).result().step == 1
        assert places(client._cluster) == {0}
        at_rest = [status.statistics.bytes_in for status in client._cluster.refresh()]
        client.push({name: np.ones(4) for name in PARAMETERS}).result()
        now = [status.statistics.bytes_in for status in client._cluster.refresh()]
        assert (now[0] > at_rest[0], now[1:]) == (True, [0, 0])


def test_the_environment_sets_the_bound(cluster, monkeypatch):
    for bound, found in ((73, {0}), (72, {0, 1})):
        monkeypatch.setenv("GLOBALSTEP_RUN_POLICY", f"spread_above={bound}")
        with gs.connect(cluster(2).target) as client:
            client.declare(PARAMETERS, gs.optim.SGD(0.1))  # and a step of 8 bytes
            assert places(client._cluster) == found


@pytest.mark.parametrize(("bound", "found"), [(17, {0}), (16, {0, 1})])
def test_the_configuration_of_a_trainer_sets_the_bound(monkeypatch, bound, found):
    def loss_fn(now, x):
        return now["w"] * x + now["v"], {"w": x, "v": np.float32(1)}

    config = gs.ConfigProto(run_policy=gs.RunPolicy(spread_above=bound))
    with starting() as servers_of:
        jobs = {"ps": [server.address for server in servers_of(2)], "worker": ["127.0.0.1:0"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 0}}))
        model = {"w": np.float32(0), "v": np.float32(0)}
        with gs.Trainer(model, loss_fn, optimizer=gs.optim.SGD(0.1), steps=1, config=config) as trainer:
            trainer.step(np.float32(2))
            assert places(trainer._session.cluster) == found


def test_a_worker_places_what_it_adds_as_the_run_does_whatever_its_own_bound(cluster):
    for policy, found in ((TOGETHER, {0}), (SPREAD, {0, 1})):
        target = cluster(2).target
        with gs.Graph().as_default(), gs.Session(target, config=gs.ConfigProto(run_policy=policy)) as first:
            gs.Variable(np.zeros(2), name="w")
            first.run(gs.global_variables_initializer())
        other = TOGETHER if policy is SPREAD else SPREAD
        with gs.Graph().as_default(), gs.Session(target, config=gs.ConfigProto(run_policy=other)) as second:
            gs.Variable(np.zeros(2), name="w")
            added = [gs.Variable(np.zeros(2), name=name) for name in "uv"]
            second.run([variable.initializer for variable in added])
            assert places(second.cluster) == found


@pytest.mark.parametrize(("begun", "then"), [(SPREAD, TOGETHER), (TOGETHER, SPREAD)])
def test_a_chief_that_comes_back_leaves_all_where_it_is(cluster, tmp_path, begun, then):
    run = cluster(2)
    model, first = session(run, begun, directory=tmp_path)
    first.run(model.train, {model.by: 1.0})
    held = dict(first._tf_sess().cluster.where)
    assert len(set(held.values())) == (2 if begun is SPREAD else 1)
    first._release()  # as if the process had died
    model, again = session(run, then, directory=tmp_path)
    with again:
        again.run(model.train, {model.by: 1.0})
        assert again.run(model.w).tolist() == [2.0, 2.0]
        assert again._tf_sess().cluster.where == held


@pytest.mark.parametrize(("begun", "then"), [(SPREAD, TOGETHER), (TOGETHER, SPREAD)])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 2), (2, 3), (3, 1)])
def test_a_checkpoint_restores_into_the_placement_of_the_run_that_reads_it(
    cluster, tmp_path, monkeypatch, begun, then, before, after
):
    values = {}
    for shards, policy in ((before, begun), (after, then)):
        monkeypatch.setenv("GLOBALSTEP_RUN_POLICY", f"spread_above={policy.spread_above}")
        with gs.connect(cluster(shards).target) as client:
            client.declare(PARAMETERS, gs.optim.Adam(0.1), restore=str(tmp_path))
            if values:
                assert client.step() == 3
                for name, value in client.pull().items():
                    np.testing.assert_array_equal(value, values[name])
            for _ in range(3):
                client.push({name: np.ones(4) for name in PARAMETERS}).result()
            assert places(client._cluster) == ({0} if policy is TOGETHER else set(range(shards)))
            values = client.pull()
            client.save(str(tmp_path))


def test_a_run_comes_back_from_its_log_where_it_was(cluster, tmp_path):
    run = cluster(2)
    logged = gs.RunPolicy(durability="log", spread_above=0)
    model, first = session(run, logged, directory=tmp_path)
    first.run(model.train, {model.by: 1.0})
    held = dict(first._tf_sess().cluster.where)
    first._release()  # as if all processes had died
    for control in run.ps.controls:
        control.durability.close()
        control.handler.shard = Shard(SYSTEM_CLOCK)
    model, again = session(run, gs.RunPolicy(durability="log"), directory=tmp_path)
    with again:
        again.run(model.train, {model.by: 1.0})
        assert again.run(model.w).tolist() == [2.0, 2.0]
        assert again._tf_sess().cluster.where == held
        assert set(held.values()) == {0, 1}
