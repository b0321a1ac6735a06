"""slim.learning.train: the loop, its checkpoints, other workers, and what a step is told."""

import json
import logging
import threading

import numpy as np
import pytest
from small_model import wait_for_saves

import globalstep as gs

slim = gs.contrib.slim


def model(rate=0.1):
    """Give the training op of a line through points on y = 2 x."""
    x = gs.constant([[1.0], [2.0]])
    y = slim.fully_connected(x, 1, activation_fn=None, weights_initializer=gs.zeros_initializer(), scope="line")
    slim.losses.mean_squared_error(y, gs.constant([[2.0], [4.0]]))
    total = slim.losses.get_total_loss()
    gs.summary.scalar("loss", total)
    return slim.learning.create_train_op(total, gs.train.GradientDescentOptimizer(rate))


def test_it_trains_saves_and_goes_on_from_there(tmp_path):
    losses = []
    for steps in (10, 30):
        with gs.Graph().as_default():
            losses.append(slim.learning.train(model(), str(tmp_path), number_of_steps=steps, save_summaries_secs=0))
        wait_for_saves()
        assert gs.train.load_variable(str(tmp_path), "global_step") == steps
    assert losses[1] < losses[0] < 2.5
    with gs.Graph().as_default():
        # One step more than is needed, as TensorFlow: it asks after a step whether to stop.
        slim.learning.train(model(), str(tmp_path), number_of_steps=30, save_summaries_secs=0)
    wait_for_saves()
    assert gs.train.load_variable(str(tmp_path), "global_step") == 31


def test_a_worker_starts_late_and_ends_with_the_job(cluster, monkeypatch):
    monkeypatch.setattr("globalstep.tf1.slim.learning._POLL_SECS", 0.01)
    worker_waits, first_of_worker, failed = threading.Event(), [], []

    def chief_step(session, train_op, step, asked):
        assert worker_waits.wait(20)
        return slim.learning.train_step(session, train_op, step, asked)

    def worker():
        def late_step(session, train_op, step, asked):
            loss, stop = slim.learning.train_step(session, train_op, step, asked)
            first_of_worker.append(int(session.run(step)))
            return loss, stop

        try:
            with gs.Graph().as_default():
                options = {"is_chief": False, "startup_delay_steps": 5, "number_of_steps": 300}
                slim.learning.train(model(), None, late_step, master=cluster.target, **options)
        except BaseException as error:
            failed.append(error)

    class Watch(logging.Handler):
        def emit(self, record):
            if "Waiting for global step 5" in record.getMessage():
                worker_waits.set()

    logger, watch = logging.getLogger("globalstep"), Watch()
    logger.addHandler(watch)
    level = logger.level
    logger.setLevel(logging.INFO)
    thread = threading.Thread(target=worker, name="worker")
    thread.start()
    try:
        with gs.Graph().as_default():
            slim.learning.train(model(), None, chief_step, master=cluster.target, number_of_steps=200)
    finally:
        thread.join()
        logger.removeHandler(watch)
        logger.setLevel(level)
    assert not failed
    assert all(step > 5 for step in first_of_worker)


def test_workers_make_steps_together(cluster):
    failed, ran = [], {}

    def work(is_chief):
        def counted(session, train_op, step, asked):
            loss, stop = slim.learning.train_step(session, train_op, step, asked)
            ran[is_chief] = ran.get(is_chief, 0) + 1
            return loss, stop

        try:
            with gs.Graph().as_default():
                x = gs.constant([[1.0], [2.0]])
                y = slim.fully_connected(x, 1, activation_fn=None, weights_initializer=gs.zeros_initializer())
                slim.losses.mean_squared_error(y, gs.constant([[2.0], [4.0]]))
                together = gs.train.SyncReplicasOptimizer(gs.train.GradientDescentOptimizer(0.1), 2)
                train_op = slim.learning.create_train_op(slim.losses.get_total_loss(), together)
                options = {"is_chief": is_chief, "number_of_steps": 20, "sync_optimizer": together}
                slim.learning.train(train_op, None, counted, master=cluster.target, **options)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, args=(False,), name="worker")
    thread.start()
    work(True)
    thread.join()
    assert not failed
    assert 20 <= ran[True] <= 22
    assert 20 <= ran[False] <= 22


def test_a_lost_ps_is_restored_and_training_goes_on(cluster, tmp_path):
    lost = []

    def step(session, train_op, at, asked):
        result = slim.learning.train_step(session, train_op, at, asked)
        if int(session.run(at)) == 6 and not lost:
            saver.save(session, str(tmp_path / "model.ckpt"), global_step=at)
            lost.append(True)
            cluster.lose(1)
        return result

    with gs.Graph().as_default():
        op, saver = model(), gs.train.Saver()
        slim.learning.train(
            op, str(tmp_path), step, master=cluster.target, saver=saver, number_of_steps=12, save_summaries_secs=0
        )
    wait_for_saves()
    assert lost
    assert gs.train.load_variable(str(tmp_path), "global_step") == 12


def test_the_end_of_an_input_ends_training(tmp_path):
    with gs.Graph().as_default():
        (x,) = gs.train.slice_input_producer([gs.constant([1.0, 2.0, 3.0])], num_epochs=2, shuffle=False)
        slope = gs.Variable(0.0)
        loss = gs.square(slope * x - 2 * x)
        train = slim.learning.create_train_op(loss, gs.train.GradientDescentOptimizer(0.05))
        assert slim.learning.train(train, str(tmp_path), save_summaries_secs=0) < 0.1
    wait_for_saves()
    assert gs.train.load_variable(str(tmp_path), "global_step") == 6


def test_steps_are_logged_and_traced(tmp_path, caplog):
    caplog.set_level(logging.INFO, "globalstep")
    with gs.Graph().as_default():
        slim.learning.train(
            model(), str(tmp_path), number_of_steps=4, log_every_n_steps=2, trace_every_n_steps=3, save_summaries_secs=0
        )
    wait_for_saves()
    said = [record.getMessage() for record in caplog.records if "sec/step" in record.getMessage()]
    assert len(said) == 2
    assert said[0].startswith("global step 1: loss = ")
    traces = sorted(path.name for path in tmp_path.glob("tf_trace-*.json"))
    assert traces == ["tf_trace-0.json", "tf_trace-3.json"]
    assert json.loads((tmp_path / traces[0]).read_text())["traceEvents"]
    with pytest.raises(ValueError, match="logdir must be present"):
        slim.learning.train_step(None, None, None, {"should_trace": None})


def test_init_fn_restores_a_part(tmp_path):
    with gs.Graph().as_default(), gs.Session() as session:
        slim.fully_connected(gs.ones([1, 1]), 1, scope="line", weights_initializer=gs.constant_initializer(1.5))
        session.run(gs.global_variables_initializer())
        path = gs.train.Saver().save(session, str(tmp_path / "pretrained"))
    with gs.Graph().as_default():
        train = model(rate=0.0)
        wanted = slim.get_variables_to_restore(include=["line"])
        init = slim.assign_from_checkpoint_fn(path, [*wanted, gs.Variable(0.0, name="more")], ignore_missing_vars=True)
        # (1.5 - 2)^2 and (3 - 4)^2
        assert slim.learning.train(train, None, init_fn=init, number_of_steps=1) == pytest.approx(0.625)
        with pytest.raises(ValueError, match="var_list cannot be empty"):
            slim.assign_from_checkpoint_fn(path, [])
    with gs.Graph().as_default(), gs.Session() as session:
        model()
        session.run(gs.global_variables_initializer())
        line = slim.get_unique_variable("line/weights")
        assign, feeds = slim.assign_from_checkpoint(path, {"line/weights": line})
        session.run(assign, feeds)
        assert session.run(line).tolist() == [[1.5]]
        other = gs.Variable(np.zeros(3, np.float32), name="other")
        with pytest.raises(ValueError, match=r"Checkpoint is missing variable \[other\]"):
            slim.assign_from_checkpoint(path, [other])
        with pytest.raises(ValueError, match="must be unchanged for line/weights"):
            slim.assign_from_checkpoint(path, {"line/weights": other})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"number_of_steps": 0}, "must be either None or a positive number"),
        ({"saver": object()}, "Cannot provide saver because logdir=None"),
        ({"summary_op": None}, "Cannot provide summary_op because logdir=None"),
        ({"trace_every_n_steps": 1}, "Cannot provide trace_every_n_steps because logdir=None"),
        ({"sync_optimizer": object()}, "must be a tf.train.SyncReplicasOptimizer, or several"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        slim.learning.train(gs.constant(0.0), None, **options)
    with pytest.raises(ValueError, match="train_op cannot be None"):
        slim.learning.train(None, None)


class TestCreateTrainOp:
    def test_multipliers_and_norms(self):
        a, b = gs.Variable([3.0, 4.0], name="a"), gs.Variable(1.0, name="b")
        loss = gs.reduce_sum(gs.square(a)) / 2 + b
        options = {"gradient_multipliers": {"a": 2.0, b: 0.0}, "clip_gradient_norm": 5.0, "summarize_gradients": True}
        train = slim.learning.create_train_op(loss, gs.train.GradientDescentOptimizer(1.0), **options)
        assert train in gs.get_collection(gs.GraphKeys.TRAIN_OP)
        with gs.Session() as session:
            session.run(gs.global_variables_initializer())
            assert session.run(train) == 13.5
            np.testing.assert_allclose(session.run(a), [0, 0], atol=1e-6)
            assert session.run(b) == 1
            assert session.run(gs.train.get_global_step()) == 1
        assert len(gs.get_collection(gs.GraphKeys.SUMMARIES)) == 4

    def test_update_ops_run_in_each_step(self):
        w, seen = gs.Variable(1.0), gs.Variable(0.0, trainable=False)
        gs.add_to_collection(gs.GraphKeys.UPDATE_OPS, gs.assign_add(seen, 1.0))
        train = slim.learning.create_train_op(gs.square(w), gs.train.GradientDescentOptimizer(0.1), global_step=None)
        with gs.Session() as session:
            session.run(gs.global_variables_initializer())
            for _ in range(3):
                session.run(train)
            assert session.run(seen) == 3

    def test_a_loss_that_is_not_finite_is_an_error(self):
        w = gs.Variable(1.0)
        train = slim.learning.create_train_op(w / 0.0, gs.train.GradientDescentOptimizer(0.1))
        with gs.Session() as session:
            session.run(gs.global_variables_initializer())
            with pytest.raises(gs.errors.InvalidArgumentError, match="LossTensor is inf or nan"):
                session.run(train)

    def test_what_means_nothing_is_refused(self):
        a, b = gs.Variable(1.0, name="a"), gs.Variable(1.0, name="b")
        optimizer = gs.train.GradientDescentOptimizer(1.0)
        with pytest.raises(ValueError, match="no Variable to train"):
            slim.learning.create_train_op(a * 1.0, optimizer, variables_to_train=[])
        with pytest.raises(ValueError, match="Requested multiple of `None` gradient"):
            slim.learning.create_train_op(a * 1.0, optimizer, gradient_multipliers={b: 2.0})
