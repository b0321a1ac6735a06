"""The Saver with real sessions and in-process PS tasks."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.checkpoints.checkpoint import CheckpointReader
from globalstep.errors import NotFoundError
from globalstep.tf1.sessions.saver import Saver

pytestmark = pytest.mark.usefixtures("graph")


def build(trained_steps=0):
    """Make a model with an optimizer that has slots."""
    w = gs.Variable(np.ones((2, 3), np.float32), name="w")
    step = gs.train.get_or_create_global_step()
    loss = gs.reduce_sum(w * w)
    train = gs.train.MomentumOptimizer(0.125, 0.5).minimize(loss, global_step=step)
    return w, step, train


def test_a_moving_average_restores_as_the_variable(tmp_path):
    w = gs.Variable(2.0, name="w")
    ema = gs.train.ExponentialMovingAverage(0.5)
    average = ema.apply([w])
    with gs.Session() as sess:
        sess.run(gs.global_variables_initializer())
        sess.run(w.assign(4.0))
        sess.run(average)
        path = Saver().save(sess, str(tmp_path / "m"))
        Saver({ema.average_name(w): w}).restore(sess, path)
        assert sess.run(w) == 3.0


def test_a_failed_restore_leaves_the_values(tmp_path):
    w = gs.Variable(1.0, name="w")
    with gs.Session() as sess:
        sess.run(w.initializer)
        path = Saver([w]).save(sess, str(tmp_path / "m"))
        v = gs.Variable(7.0, name="v")
        sess.run([v.initializer, w.assign(5.0)])
        with pytest.raises(NotFoundError, match="Key v not found in checkpoint"):
            Saver([w, v]).restore(sess, path)
        assert sess.run([w, v]) == [5.0, 7.0]


def test_the_ledger_is_in_the_checkpoint(tmp_path):
    _, step, train = build()
    with gs.Session() as sess:
        sess.run(gs.global_variables_initializer())
        sess.run(train)
        path = Saver().save(sess, str(tmp_path / "m"), global_step=step)
        with CheckpointReader(path) as reader:
            assert sess.cluster.client_id.encode() in reader.index.ledger
            assert reader.index.mutation_index > 0


def test_a_checkpoint_with_nan_is_saved_and_said_to_be_one(tmp_path, caplog):
    w, step, train = build()
    u = gs.Variable(np.zeros(3, np.float64), name="u")
    with gs.Session() as sess:
        sess.run(gs.global_variables_initializer())
        with caplog.at_level("WARNING", "globalstep"):
            sess.run(u.assign([1.0, np.inf, 0.0]))
            Saver().save(sess, str(tmp_path / "m"), global_step=step)
        assert not caplog.records  # infinity is a value
        sess.run(train)
        sess.run(u.assign([1.0, np.nan, 0.0]))
        with caplog.at_level("WARNING", "globalstep"):
            path = Saver().save(sess, str(tmp_path / "m"), global_step=step)
    (said,) = caplog.messages
    assert said.startswith(f"NaN: checkpoint {path} holds NaN in Variable 'u' on /job:ps/task:0 in this process.")
    assert path.endswith("m-1")
    with CheckpointReader(path) as reader:
        assert np.isnan(reader.get_tensor("u")).tolist() == [False, True, False]
    assert w.op_name == "w"
