"""gs.connect: parameters by names and arrays, without a graph."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
from served_tasks import starting

import globalstep as gs
from globalstep.errors import FailedPreconditionError, InvalidArgumentError

W = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


@pytest.fixture
def start():
    with starting() as servers_of:
        yield lambda shards: "grpc://" + ",".join(server.address for server in servers_of(shards))


def test_a_line_is_found():
    rng = np.random.default_rng(0)
    with gs.connect() as client:
        assert client.declare({"w": np.zeros(2, np.float32), "b": np.float32(0)}, gs.optim.SGD(0.1))
        for _ in range(200):
            values, x = client.pull(), rng.normal(size=(16, 2)).astype(np.float32)
            error = x @ values["w"] + values["b"] - (x @ [2.0, -3.0] + 0.5)
            client.push({"w": 2 * x.T @ error / 16, "b": 2 * error.mean()})
        assert client.step() == 200
        np.testing.assert_allclose(client.pull()["w"], [2, -3], atol=1e-3)
        assert client.pull(["b"])["b"] == pytest.approx(0.5, abs=1e-3)


def test_it_loads_nothing_of_the_library_of_tensorflow(tmp_path):
    program = (
        "import sys, numpy as np, globalstep as gs\n"
        "with gs.connect() as client:\n"
        "    client.declare({'w': np.zeros(3, np.float32)}, gs.optim.Adam(gs.optim.StepLR(0.1, 2)))\n"
        "    client.push({'w': np.ones(3)}).result()\n"
        "    client.save(sys.argv[1])\n"
        "print([name for name in sys.modules if name.startswith('globalstep.tf1')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "saved")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "optimizer",
    [
        gs.optim.SGD(0.1, momentum=0.9),
        gs.optim.Adam(gs.optim.CosineAnnealingLR(0.1, 10)),
        gs.optim.AdamW(0.01),
        gs.optim.Adagrad(0.1, lr_decay=0.1),
        gs.optim.RMSprop(0.01, centered=True),
        {"0": gs.optim.Adam(lambda step: 0.1 / (1 + step)), "*": gs.optim.Adam(0.01)},
    ],
    ids=["momentum", "adam", "adamw", "adagrad", "rmsprop", "groups"],
)
def test_its_numbers_are_those_of_fit(optimizer):
    gradients = np.random.default_rng(1).normal(size=(6, *W.shape)).astype(np.float32)

    def loss_fn(params, gradient):
        return 1.0, [gradient, 2 * gradient]

    fitted = gs.fit([W, W], loss_fn, lambda: ((g,) for g in gradients), optimizer=optimizer, steps=6).model
    with gs.connect() as client:
        client.declare({"0": W, "1": W}, optimizer)
        for gradient in gradients:
            client.pull()
            client.push({"0": gradient, "1": 2 * gradient}).result()
        values = client.pull()
    for name, wanted in enumerate(fitted):
        assert values[str(name)].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("shards", [1, 2])
def test_the_first_client_gives_the_values_and_others_join(start, shards):
    target, began, barrier = start(shards), [], threading.Barrier(3)

    def work(at):
        with gs.connect(target) as client:
            barrier.wait()
            began.append(client.declare({"w": np.full(4, at, np.float32)}, gs.optim.SGD(1.0)))
            first = client.pull()["w"]
            client.push({"w": np.ones(4)}).result()
            values.append((first, client.pull()["w"]))
            barrier.wait()

    values = []
    threads = [threading.Thread(target=work, args=(at,), name=f"client {at}") for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(began) == [False, False, True]
    with gs.connect(target) as client:
        assert client.step() == 3
        (last,) = set(client.pull(["w"])["w"].tolist())
    # Each began with what one of them has given, or what the pushes of others had made of that.
    assert last + 3 in range(3)
    assert all(last <= after[0] < before[0] <= last + 3 for before, after in values)


def test_a_task_of_tf_config_is_a_client_of_its_ps_task_which_waits_for_all_of_its_workers(monkeypatch):
    with starting() as servers_of:
        (server,) = servers_of()
        began = []
        for index in range(2):
            cluster = {"ps": [server.address], "worker": ["127.0.0.1:1", "127.0.0.1:2"]}
            place = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            monkeypatch.setenv("TF_CONFIG", json.dumps(place))
            with gs.connect() as client:
                began.append(client.declare({"w": np.zeros(2, np.float32)}, gs.optim.SGD(1.0)))
                client.push({"w": np.ones(2)}).result()
                assert client.step() == index + 1
            missing = server.shard.attendance()[2].missing
            assert missing == ([] if index else ["/job:worker/task:1"])
        assert began == [True, False]
    del cluster["ps"]
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    with pytest.raises(InvalidArgumentError, match="TF_CONFIG has 2 workers and no ps"):
        gs.connect()


def test_a_client_does_not_begin_anew_what_another_has_begun_since_it_looked(start, monkeypatch, tmp_path):
    target = start(2)
    with gs.connect(target) as late, gs.connect(target) as first:

        def meanwhile(restore):
            assert first.declare({"w": np.zeros(4, np.float32)}, gs.optim.SGD(1.0))
            first.push({"w": np.ones(4)}).result()

        monkeypatch.setattr("globalstep.chief.client.find_checkpoint", meanwhile)
        assert not late.declare({"w": np.zeros(4, np.float32)}, gs.optim.SGD(1.0), restore=str(tmp_path))
        assert late.pull()["w"].tolist() == [-1] * 4


def test_a_client_begins_anew_where_a_ps_task_was_started_again_since_it_looked(monkeypatch, tmp_path):
    with starting() as servers_of:
        servers, restarts = servers_of(2), [5000]

        def meanwhile(restore):
            while restarts:
                servers[1].shard.spent_incarnations += restarts.pop()

        monkeypatch.setattr("globalstep.chief.client.find_checkpoint", meanwhile)
        with gs.connect("grpc://" + ",".join(server.address for server in servers)) as client:
            assert client.declare({"w": np.zeros(4, np.float32)}, gs.optim.SGD(1.0), restore=str(tmp_path))


def test_rows_of_a_table_are_pulled_and_pushed_by_id(start):
    with gs.connect(start(2)) as client:
        client.declare({"table": W, "w": np.zeros(2, np.float32)}, gs.optim.SGD(1.0))
        assert client.pull([], rows={"table": [2, 0, 2]})["table"].tolist() == [[5, 6], [1, 2], [5, 6]]
        client.push({}, rows={"table": ([2, 0, 2], np.ones((3, 2)))}).result()
        assert client.pull()["table"].tolist() == [[0, 1], [3, 4], [3, 4]]
        assert client.pull([], rows={"table": []})["table"].shape == (0, 2)


def test_a_checkpoint_brings_back_values_slots_and_step(tmp_path):
    optimizer, gradient = gs.optim.Adam(0.1), np.full(W.shape, 0.5, np.float32)
    with gs.connect() as client:
        client.declare({"w": W}, optimizer, restore=str(tmp_path))
        for _ in range(3):
            client.push({"w": gradient})
        prefix = client.save(str(tmp_path))
        client.push({"w": gradient}).result()
        wanted = client.pull()["w"]
    assert prefix.endswith("-3")
    for source in (str(tmp_path), prefix):
        with gs.connect() as client:
            assert client.declare({"w": np.zeros_like(W)}, optimizer, restore=source)
            assert client.step() == 3
            assert client.push({"w": gradient}).result() == gs.Pushed(step=4, applied=True)
            assert client.pull()["w"].tobytes() == wanted.tobytes()
    assert gs.load(str(tmp_path), step=3)["w"].shape == W.shape


def test_a_gradient_that_is_not_finite_is_dropped_where_the_policy_says_so(monkeypatch):
    monkeypatch.setenv("GLOBALSTEP_RUN_POLICY", "on_nan=drop")
    with gs.connect() as client:
        client.declare({"w": W}, gs.optim.SGD(1.0))
        assert client.push({"w": np.full(W.shape, np.nan)}).result() == gs.Pushed(step=0, applied=False)
        assert client.pull()["w"].tolist() == W.tolist()


def test_what_does_not_fit_is_refused_and_changes_nothing():
    with gs.connect() as client:
        with pytest.raises(FailedPreconditionError, match="has declared nothing: call declare"):
            client.push({"w": W})
        with pytest.raises(InvalidArgumentError, match="'w' is object"):
            client.declare({"w": np.array([None])}, gs.optim.SGD(0.1))
        with pytest.raises(InvalidArgumentError, match="weight_decay, which is part of the gradients"):
            client.declare({"w": W}, gs.optim.SGD(0.1, weight_decay=0.1))
        with pytest.raises(InvalidArgumentError, match=r"optimizer is torch\.optim\.|it must be one of gs\.optim"):
            client.declare({"w": W}, "sgd")
        client.declare({"w": W, "count": np.zeros(2, np.int64)}, gs.optim.SGD(0.1))
        for gradients, rows, message in (
            ({"v": W}, None, "'v' is not a trained parameter; these are: w"),
            ({"count": [1, 2]}, None, "'count' is not a trained parameter"),
            ({"w": W[0]}, None, r"gradient of 'w' is float32\[2\], and the parameter float32\[3, 2\]"),
            ({}, None, "was given no gradient"),
            ({"w": W}, {"w": ([0], W[:1])}, "'w' has a whole gradient and one by rows"),
            ({}, {"w": ([3], W[:1])}, "Row 3 is not in 'w', which has the rows 0 to 2"),
            ({}, {"w": ([0, 1], W[:1])}, "for 2 ids"),
            ({}, {"w": ([0.5], W[:1])}, "they must be integers"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                client.push(gradients, rows=rows)
        with pytest.raises(InvalidArgumentError, match="asked for as a whole and by rows"):
            client.pull(["w"], rows={"w": [0]})
        assert client.step() == 0
        assert client.pull()["w"].tolist() == W.tolist()
    with pytest.raises(InvalidArgumentError, match="cluster is 7; it must be a target"):
        gs.connect(7)


def test_a_client_that_declares_otherwise_is_told_what_differs(start):
    target = start(1)
    with gs.connect(target) as first, gs.connect(target) as second:
        first.declare({"w": W}, gs.optim.SGD(0.1))
        with pytest.raises(InvalidArgumentError, match=r"Variable 'w' is float32 \[2\] .* float32 \[3, 2\]"):
            second.declare({"w": np.zeros(2, np.float32)}, gs.optim.SGD(0.1))
        with pytest.raises(InvalidArgumentError, match=r"learning_rate of optimizer 'SGD' is 0\.2 .* 0\.1"):
            second.declare({"w": W}, gs.optim.SGD(0.2))
        with pytest.raises(InvalidArgumentError, match="The run has no Variable 'v', which this program declares"):
            second.declare({"w": W, "v": np.zeros(2, np.int64)}, gs.optim.SGD(0.1))
        assert second.declare({"w": W}, gs.optim.SGD(0.1)) is False


def test_a_gs_train_optimizer_is_taken_too():
    with gs.connect() as client:
        client.declare({"w": W}, gs.train.MomentumOptimizer(0.5, 0.9))
        client.push({"w": np.ones_like(W)}).result()
        assert client.pull()["w"].tolist() == (W - 0.5).tolist()
