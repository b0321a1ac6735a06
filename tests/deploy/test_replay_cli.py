"""`globalstep replay`: any step of a run again from its log, and the push that brought the first NaN."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

import globalstep as gs
from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.deploy.cli import main
from globalstep.ps import local
from globalstep.ps.local import LocalPS
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import Expr
from globalstep.worker.client.client import ClusterClient

KEPT = RunPolicy(durability="log", keep_log=True)


def started(directory, shards=2, policy=KEPT):
    tasks = LocalPS(shards)
    client = ClusterClient(tasks.transports(), policy=policy, task="/job:chief/task:0")
    client.begin(open=False, run=RunIdentity("a1b2c3", "", str(directory)))
    hypers = {"learning_rate": Expr("const", value=0.5)}
    client.declare(
        [
            VariableDecl("a", "float32", (3,)),
            VariableDecl("b", "float32", (20, 2), shards - 1),
            VariableDecl("global_step", "int64", (), is_step=True),
        ],
        [OptimizerDecl("sgd", "gradient_descent", hypers, {"a": (), "b": ()})],
    )
    zero = Op(OpKind.ASSIGN, "global_step", value=np.array(0))
    client.push(Push([Op(OpKind.ASSIGN, "a", fill=1.0), Op(OpKind.ASSIGN, "b", fill=2.0), zero]))
    client.open()
    return tasks, client


def push(client, value, step):
    ops = [
        Op(OpKind.APPLY, "a", value=np.full(3, 0.1, "f4"), optimizer="sgd"),
        Op(OpKind.APPLY, "b", value=np.full((20, 2), value, "f4"), optimizer="sgd"),
    ]
    return client.push(Push(ops, [Increment("global_step")], [OptimizerUse("sgd")], [], {"global_step": step}, "all"))


@pytest.mark.parametrize("shards", [1, 2])
def test_every_step_of_the_run_comes_back_bit_for_bit(tmp_path, capsys, shards):
    _, client = started(tmp_path, shards)
    held = {}
    for step in range(1, 9):
        push(client, 0.3 * step, step - 1)
        held[step] = client.pull([Read("a"), Read("b")])
        if step == 5:
            with client.snapshot():
                pass
    client.close()
    for step, (a, b) in held.items():
        out = tmp_path / f"{step}.safetensors"
        assert main(["replay", str(tmp_path), "--to-step", str(step), "--out", str(out)]) == 0
        assert f"global_step {step}:" in capsys.readouterr().out
        found = load_file(out)
        assert found["a"].tobytes() == a.tobytes()
        assert found["b"].tobytes() == b.tobytes()
        assert found["global_step"] == step or shards == 1
    assert main(["replay", str(tmp_path), "--to-step", "99"]) == 1
    assert "never reaches global_step 99: it has steps 0 to 8" in capsys.readouterr().err


def test_without_keep_log_it_goes_back_to_the_last_checkpoint_and_says_so(tmp_path, capsys):
    _, client = started(tmp_path, policy=RunPolicy(durability="log"))
    for step in range(6):
        push(client, 1.0, step)
        if step == 3:
            with client.snapshot():
                pass
    assert main(["replay", str(tmp_path), "--to-step", "6"]) == 0
    assert main(["replay", str(tmp_path), "--to-index", "3"]) == 1
    # The sequencer's stays: this client, which is not the chief, stores no journal.
    assert "The log of shard 1 begins after entry 6" in capsys.readouterr().err
    client.close()


@pytest.mark.parametrize("shards", [1, 2])
def test_the_push_that_brought_the_first_nan_is_named(tmp_path, capsys, shards):
    tasks, client = started(tmp_path, shards)
    worker = ClusterClient(tasks.transports(), task="/job:worker/task:3")
    for step in range(4):
        push(client, 1.0, step)
    assert main(["replay", str(tmp_path), "--find-nan"]) == 0
    assert "is finite" in capsys.readouterr().out
    push(worker, 1.0, 4)
    push(worker, np.nan, 3)
    push(client, 1.0, 6)
    assert main(["replay", str(tmp_path), "--find-nan"]) == 3
    said = capsys.readouterr().out
    assert "came with entry 7: b." in said
    assert f"/job:worker/task:3, client {worker.client_id}" in said
    assert "number 2\n" in said
    assert "global_step 6\n" in said
    assert "staleness:     2\n" in said
    client.close()
    worker.close()


def test_a_log_that_was_moved_aside_is_played_where_it_lies(tmp_path, capsys):
    """A PS task does so when the run goes on without it: here in a second life that begins anew."""
    lives = []
    for value in (1.0, 2.0):
        tasks, client = started(tmp_path, policy=RunPolicy(durability="log"))
        for step in range(3):
            push(client, value, step)
        lives.append((client.incarnation, client.pull([Read("b")])[0]))
        client.close()
        for control in tasks.controls:
            control.durability.close()
    (first, held), (second, held_now) = lives
    assert (tmp_path / "log" / f"abandoned-{first}").is_dir()
    assert (tmp_path / "log" / str(second)).is_dir()
    out = tmp_path / "values.safetensors"
    for incarnation, found in (([], held_now), (["--incarnation", str(first)], held)):
        assert main(["replay", str(tmp_path), "--to-step", "3", "--out", str(out), *incarnation]) == 0
        assert load_file(out)["b"].tobytes() == found.tobytes()
    capsys.readouterr()
    assert main(["replay", str(tmp_path), "--incarnation", "7"]) == 1
    said = capsys.readouterr().err
    assert "There is no write-ahead log of incarnation 7" in said
    assert f"Logs that were moved aside: --incarnation {first}." in said


def test_it_agrees_with_the_checkpoints_of_a_run(tmp_path, capsys):
    """A monitored session's own program, with slots and a learning rate that decays."""
    with gs.Graph().as_default():
        w = gs.Variable(np.ones((4, 3), np.float32), name="w")
        step = gs.train.get_or_create_global_step()
        rate = gs.train.exponential_decay(0.1, step, 3, 0.7)
        x = gs.placeholder(gs.float32, [4, 3])
        train = gs.train.AdamOptimizer(rate).minimize(gs.reduce_sum(gs.square(w - x)), global_step=step)
        twice = w.assign(w * 2.0)
        config = gs.ConfigProto(run_policy=KEPT)
        rng = np.random.default_rng(0)
        with gs.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_steps=4, config=config, log_step_count_steps=None
        ) as session:
            for at in range(1, 11):
                session.run(train, {x: rng.normal(size=(4, 3))})
                if at == 8:
                    session._tf_sess().run(twice)  # an entry more, at the step of a checkpoint
    gs.summary.FileWriterCache.clear()
    for step in (4, 8, 10):
        assert main(["replay", str(tmp_path), "--to-step", str(step)]) == 0
        said = capsys.readouterr().out
        entry = said.split(",")[0].removeprefix("Entry ")
        held = (
            f"model.ckpt-{step} (global_step {step}, entry {entry}) holds the same, bit for bit: 6 Variables compared."
        )
        assert held in said
        # By its entry it is the same checkpoint.
        assert main(["replay", str(tmp_path), "--to-index", entry]) == 0
        assert held in capsys.readouterr().out
        if step == 8:
            later = str(int(entry) + 1)
            assert main(["replay", str(tmp_path), "--to-index", later]) == 0
            said = capsys.readouterr().out
            assert f"Entry {later}, global_step 8:" in said
            assert "holds the same" not in said


def test_no_log_is_no_traceback(tmp_path, capsys):
    assert main(["replay", str(tmp_path)]) == 1
    assert 'with RunPolicy(durability="log")' in capsys.readouterr().err
    assert not local._named
