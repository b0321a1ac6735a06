"""Every code sample of the documents that this library was specified by, with what they print.

tests/seeds.md says which documents these are, and maps each symbol in them to its tests.
"""

import ast
import contextlib
import functools
import io
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import globalstep as tf

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "seeds.md"


def _words(text):
    return text.split()


#: The table of contents of the fifth document, without "tf." and arguments.
CONTENTS = _words("""
    Optimizers train.Optimizer Usage Processing-gradients Gating-Gradients Slots
    train.GradientDescentOptimizer train.AdagradOptimizer train.MomentumOptimizer train.AdamOptimizer
    train.FtrlOptimizer train.RMSPropOptimizer Gradient-Computation gradients AggregationMethod stop_gradient
    Gradient-Clipping clip_by_value clip_by_norm clip_by_average_norm clip_by_global_norm global_norm
    Decaying-the-learning-rate train.exponential_decay Moving-Averages train.ExponentialMovingAverage
    Coordinator-and-QueueRunner train.Coordinator train.QueueRunner train.add_queue_runner
    train.start_queue_runners Summary-Operations scalar_summary image_summary histogram_summary
    nn.zero_fraction merge_summary merge_all_summaries Adding-Summaries-to-Event-Files train.SummaryWriter
    train.summary_iterator Training-utilities train.global_step train.write_graph
""")
#: The methods it documents.
METHODS = _words("""
    train.Optimizer.__init__ train.Optimizer.minimize train.Optimizer.compute_gradients
    train.Optimizer.apply_gradients train.Optimizer.get_slot_names train.Optimizer.get_slot
    train.GradientDescentOptimizer.__init__ train.AdagradOptimizer.__init__ train.MomentumOptimizer.__init__
    train.AdamOptimizer.__init__ train.FtrlOptimizer.__init__ train.RMSPropOptimizer.__init__
    train.ExponentialMovingAverage.__init__ train.ExponentialMovingAverage.apply
    train.ExponentialMovingAverage.average_name train.ExponentialMovingAverage.average
    train.Coordinator.__init__ train.Coordinator.join train.Coordinator.request_stop
    train.Coordinator.should_stop train.Coordinator.wait_for_stop
    train.QueueRunner.__init__ train.QueueRunner.create_threads train.QueueRunner.exceptions_raised
    train.SummaryWriter.__init__ train.SummaryWriter.add_summary train.SummaryWriter.add_event
    train.SummaryWriter.add_graph train.SummaryWriter.flush train.SummaryWriter.close
""")
#: What the other four documents name.
OTHERS = _words("""
    Variable assign_add get_collection global_variables_initializer GraphKeys.GLOBAL_STEP placeholder pow Session
    logging.log_every_n summary.scalar train.CheckpointSaverHook train.MonitoredSession train.Saver
    train.StepCounterHook train.StopAtStepHook train.create_global_step train.get_global_step
    train.get_or_create_global_step
""")


@pytest.fixture
def sess():
    with tf.Session() as session:
        yield session


@pytest.fixture
def writers():
    """Close the event files that sessions share."""
    yield
    tf.summary.FileWriterCache.clear()


def fitting_line():
    """A small loss that any optimizer can lower."""
    w = tf.Variable(0.0)
    return tf.square(w - 3.0), w


class TestWhatTheGlobalStepMeans:
    """The first two documents: questions and answers about global_step."""

    def test_after_one_update_it_is_1(self, sess):
        def training(loss, learning_rate):
            tf.summary.scalar("loss", loss)
            optimizer = tf.train.GradientDescentOptimizer(learning_rate)
            global_step = tf.Variable(0, name="global_step", trainable=False)
            return optimizer.minimize(loss, global_step=global_step)

        loss, _ = fitting_line()
        train_op = training(loss, 0.1)
        sess.run(tf.global_variables_initializer())
        global_step = tf.train.get_global_step()
        assert tf.train.global_step(sess, global_step) == 0
        sess.run(train_op)
        assert tf.train.global_step(sess, global_step) == 1

    def test_lines_are_logged_at_step_1_101_and_201(self):
        program = """
import numpy as np
import globalstep as tf

tf.logging.set_verbosity(tf.logging.INFO)
w = tf.Variable(0.0)
loss_tensor = tf.square(w - 1.5)
train_op = tf.train.GradientDescentOptimizer(learning_rate=1e-3).minimize(
    loss_tensor, global_step=tf.train.create_global_step()
)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for _ in range(250):
        _, loss_evl = sess.run([train_op, loss_tensor])
        tf.logging.log_every_n(
            tf.logging.INFO, "np.mean(loss_evl)= %f at step %d", 100, np.mean(loss_evl),
            sess.run(tf.train.get_global_step()),
        )
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        lines = done.stderr.splitlines()
        found = [re.fullmatch(r"INFO:globalstep:np\.mean\(loss_evl\)= (\d+\.\d{6}) at step (\d+)", s) for s in lines]
        assert all(found), lines
        assert [int(match[2]) for match in found] == [1, 101, 201]
        losses = [1.5**2 * 0.998 ** (2 * step) for step in (0, 100, 200)]
        np.testing.assert_allclose([float(match[1]) for match in found], losses, rtol=1e-4)

    def test_a_loss_reads_as_the_answer_prints_it(self):
        program = (
            "import globalstep as tf; tf.logging.set_verbosity(tf.logging.INFO); "
            "tf.logging.log_every_n(tf.logging.INFO, 'np.mean(loss_evl)= %f at step %d', 100, 1.39697, 1)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stderr == "INFO:globalstep:np.mean(loss_evl)= 1.396970 at step 1\n"

    def test_a_gan_counts_two_steps_by_themselves(self, sess):
        g_loss, g = fitting_line()
        d_loss, d = fitting_line()
        g_global_step = tf.Variable(0, name="G_global_step", trainable=False)
        d_global_step = tf.Variable(0, name="D_global_step", trainable=False)
        minimizer = tf.train.RMSPropOptimizer(learning_rate=0.00005)
        g_solver = minimizer.minimize(g_loss, var_list=[g], global_step=g_global_step)
        d_solver = minimizer.minimize(d_loss, var_list=[d], global_step=d_global_step)
        sess.run(tf.global_variables_initializer())
        for _ in range(2):
            for _ in range(5):
                sess.run(d_solver)
            sess.run(g_solver)
        assert sess.run([g_global_step, d_global_step]) == [2, 10]
        assert 0 < sess.run(g) < sess.run(d)

    def test_training_goes_on_with_the_step_it_was_restored_with(self, tmp_path):
        loss, _ = fitting_line()
        train_op = tf.train.GradientDescentOptimizer(0.001).minimize(loss, tf.train.create_global_step())
        saver, init = tf.train.Saver(), tf.global_variables_initializer()
        with tf.Session() as sess:
            sess.run(init)
            for _ in range(100):
                sess.run(train_op)
            path = saver.save(sess, str(tmp_path / "model"), global_step=tf.train.get_global_step())
        with tf.Session() as sess:
            saver.restore(sess, path)
            for _ in range(100):
                sess.run(train_op)
            assert tf.train.global_step(sess, tf.train.get_global_step()) == 200


class TestTheNotebook:
    """The third document: a notebook on the functions around global_step."""

    def test_there_is_none_at_first(self):
        assert tf.train.get_global_step() is None
        assert repr(tf.GraphKeys.GLOBAL_STEP) == "'global_step'"
        assert tf.get_collection(tf.GraphKeys.GLOBAL_STEP) == []

    def test_it_is_printed_as_the_notebook_shows_it(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            print(tf.train.get_or_create_global_step())
            print(tf.train.get_global_step())
            print(tf.get_collection(tf.GraphKeys.GLOBAL_STEP))
        line = "<tf.Variable 'global_step:0' shape=() dtype=int64_ref>"
        assert printed.getvalue() == f"{line}\n{line}\n[{line}]\n"

    def test_it_is_in_two_collections(self):
        step = tf.train.create_global_step()
        assert tf.get_collection(tf.GraphKeys.GLOBAL_STEP) == [step]
        assert tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES) == [step]
        assert tf.trainable_variables() == []

    def test_two_assign_add_make_2(self):
        tf.train.get_or_create_global_step()
        step = tf.train.get_global_step()
        incr = tf.assign_add(step, 1)
        sess = tf.Session()
        sess.run(tf.global_variables_initializer())
        sess.run(incr)
        sess.run(incr)
        assert sess.run(step) == 2
        sess.close()

    def test_an_optimizer_that_is_not_given_it_leaves_it_alone(self, sess):
        step = tf.Variable(10, trainable=False, name="global_step")
        loss, _ = fitting_line()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        sess.run(tf.global_variables_initializer())
        sess.run(train_op)
        assert sess.run(step) == 10

    @pytest.mark.parametrize("step", [0, 1000])
    def test_a_checkpoint_is_named_by_its_step(self, sess, tmp_path, monkeypatch, step):
        monkeypatch.chdir(tmp_path)
        tf.Variable(1.0, name="v")
        saver = tf.train.Saver()
        sess.run(tf.global_variables_initializer())
        assert saver.save(sess, "my-model", global_step=step) == f"my-model-{step}"
        assert (tmp_path / f"my-model-{step}.index.json").exists()

    def test_a_step_counter_needs_a_global_step(self):
        tf.Variable(1.0)
        with pytest.raises(RuntimeError) as raised:
            tf.train.StepCounterHook(summary_writer=object()).begin()
        assert str(raised.value) == "Global step should be created to use StepCounterHook."

    @pytest.mark.usefixtures("writers")
    def test_a_monitored_session_with_a_directory_has_a_step_counter(self, tmp_path):
        tf.Variable(1.0)
        with pytest.raises(RuntimeError, match=r"^Global step should be created to use StepCounterHook\.$"):
            tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path))

    @pytest.mark.usefixtures("writers")
    def test_the_step_counter_writes_steps_per_second(self, tmp_path):
        loss, _ = fitting_line()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.create_global_step())
        with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), log_step_count_steps=2) as sess:
            for _ in range(5):
                sess.run(train_op)
        tags = {value.tag for event in events_of(tmp_path) for value in event.summary.value}
        assert "global_step/sec" in tags
        assert (tmp_path / "model.ckpt-5.index.json").exists()


TABLE = _words("""
    0.107177 0.11487 0.123114 0.131951 0.141421 0.151572 0.16245 0.17411 0.186607 0.2
""")


@pytest.mark.parametrize("counted", [True, False], ids=["with the step", "without the step"])
def test_the_fourth_document_prints_the_decayed_rates(counted):
    x = tf.placeholder(tf.float32, shape=[None, 1], name="x")
    y = tf.placeholder(tf.float32, shape=[None, 1], name="y")
    w = tf.Variable(tf.constant(0.0))
    global_steps = tf.Variable(0, trainable=False)
    learning_rate = tf.train.exponential_decay(0.1, global_steps, 10, 2, staircase=False)
    loss = tf.pow(w * x - y, 2)
    optimizer = tf.train.GradientDescentOptimizer(learning_rate)
    train_step = optimizer.minimize(loss, global_step=global_steps if counted else None)
    printed = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(10):
            data = np.linspace(1, 2, 10).reshape([10, 1])
            sess.run(train_step, feed_dict={x: data, y: data})
            printed.append((f"{sess.run(learning_rate):.6g}", sess.run(global_steps)))
    assert printed == ([(rate, i) for i, rate in enumerate(TABLE, 1)] if counted else [("0.1", 0)] * 10)


class TestOptimizers:
    """The fifth document: the training library's reference. Its optimizers."""

    def test_usage(self, sess):
        cost, w = fitting_line()
        opt = tf.train.GradientDescentOptimizer(learning_rate=0.1)
        opt_op = opt.minimize(cost, var_list=[w])
        sess.run(tf.global_variables_initializer())
        opt_op.run()
        assert sess.run(w) == pytest.approx(0.6)

    def test_gradients_are_capped_before_they_are_applied(self, sess):
        loss, w = fitting_line()
        other = tf.Variable(1.0)

        def my_capper(gradient):
            return None if gradient is None else tf.clip_by_value(gradient, -1.0, 1.0)

        opt = tf.train.GradientDescentOptimizer(learning_rate=0.1)
        grads_and_vars = opt.compute_gradients(loss, [w, other])
        assert [variable for _, variable in grads_and_vars] == [w, other]
        assert grads_and_vars[1][0] is None
        capped_grads_and_vars = [(my_capper(gv[0]), gv[1]) for gv in grads_and_vars]
        opt_op = opt.apply_gradients(capped_grads_and_vars)
        sess.run(tf.global_variables_initializer())
        assert sess.run(grads_and_vars[0][0]) == -6.0
        sess.run(opt_op)
        assert sess.run([w, other]) == [pytest.approx(0.1), 1.0]

    @pytest.mark.parametrize("gate", ["GATE_NONE", "GATE_OP", "GATE_GRAPH"])
    def test_every_way_of_gating_trains(self, sess, gate):
        loss, w = fitting_line()
        assert [tf.train.Optimizer.GATE_NONE, tf.train.Optimizer.GATE_OP, tf.train.Optimizer.GATE_GRAPH] == [0, 1, 2]
        opt = tf.train.GradientDescentOptimizer(0.1)
        opt_op = opt.minimize(loss, gate_gradients=getattr(opt, gate), name="step")
        sess.run(tf.global_variables_initializer())
        sess.run(opt_op)
        assert sess.run(w) == pytest.approx(0.6)

    def test_slots_can_be_asked_for(self, sess):
        loss, w = fitting_line()
        opt = tf.train.MomentumOptimizer(0.1, 0.9)
        opt_op = opt.minimize(loss)
        assert opt.get_slot_names() == ["momentum"]
        assert opt.get_slot(tf.Variable(0.0), "momentum") is None
        sess.run(tf.global_variables_initializer())
        sess.run(opt_op)
        assert sess.run(opt.get_slot(w, "momentum")) == -6.0

    def test_adam_follows_its_formula(self, sess):
        loss, w = fitting_line()
        opt = tf.train.AdamOptimizer()
        opt_op = opt.minimize(loss)
        sess.run(tf.global_variables_initializer())
        rate, beta1, beta2, epsilon = 0.001, 0.9, 0.999, 1e-8
        value = m = v = 0.0
        for t in range(1, 4):
            sess.run(opt_op)
            g = 2 * (value - 3)
            lr_t = rate * np.sqrt(1 - beta2**t) / (1 - beta1**t)
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            value -= lr_t * m / (np.sqrt(v) + epsilon)
            assert sess.run(w) == pytest.approx(value, rel=1e-5)

    @pytest.mark.parametrize(
        ("make", "value"),
        [
            (lambda: tf.train.AdagradOptimizer(0.1), 0.1 * 6 / np.sqrt(0.1 + 36)),
            (lambda: tf.train.MomentumOptimizer(0.1, 0.5), 0.6),
            (lambda: tf.train.RMSPropOptimizer(0.1, 0.9), 0.1 * 6 / np.sqrt(0.9 + 0.1 * 36)),
            (lambda: tf.train.FtrlOptimizer(0.1), 0.1 * 6 / np.sqrt(0.1 + 36)),
        ],
        ids=["Adagrad", "Momentum", "RMSProp", "Ftrl"],
    )
    def test_the_first_step_of_each(self, sess, make, value):
        loss, w = fitting_line()
        opt_op = make().minimize(loss)
        sess.run(tf.global_variables_initializer())
        sess.run(opt_op)
        assert sess.run(w) == pytest.approx(value, rel=1e-5)

    def test_wrong_arguments(self):
        loss, _ = fitting_line()
        with pytest.raises(ValueError, match="initial_accumulator_value must be positive"):
            tf.train.AdagradOptimizer(0.1, initial_accumulator_value=0.0)
        with pytest.raises(ValueError, match="learning_rate_power"):
            tf.train.FtrlOptimizer(0.1, learning_rate_power=1.0)
        with pytest.raises(ValueError, match="name"):
            tf.train.GradientDescentOptimizer(0.1, name="")
        with pytest.raises(TypeError):
            tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss, ["no variable"])


class TestGradientsAndClipping:
    """Its gradients, clipping and decay."""

    def test_gradients_may_start_from_given_ones(self, sess):
        x = tf.constant([1.0, 2.0])
        y = x * x
        plain, weighted = tf.gradients(y, x)[0], tf.gradients([y], [x], grad_ys=[tf.constant([10.0, 1.0])])[0]
        summed = tf.gradients([y, 3 * x], x, aggregation_method=tf.AggregationMethod.ADD_N)[0]
        found = sess.run([plain, weighted, summed])
        assert [value.tolist() for value in found] == [[2, 4], [20, 4], [5, 7]]

    def test_stop_gradient_makes_a_constant(self, sess):
        x = tf.constant(3.0)
        assert sess.run(tf.gradients(x * tf.stop_gradient(x), x)[0]) == 3.0
        assert tf.gradients(tf.stop_gradient(x), x) == [None]

    def test_each_way_of_clipping(self, sess):
        t = tf.constant([3.0, 4.0])
        assert sess.run(tf.clip_by_value(t, 0.0, 3.5)).tolist() == [3.0, 3.5]
        np.testing.assert_allclose(sess.run(tf.clip_by_norm(t, 1.0)), [0.6, 0.8], rtol=1e-6)
        assert sess.run(tf.clip_by_norm(t, 9.0)).tolist() == [3.0, 4.0]
        np.testing.assert_allclose(sess.run(tf.clip_by_average_norm(t, 1.0)), [1.2, 1.6], rtol=1e-6)

    def test_clipping_by_the_global_norm(self, sess):
        t_list = [tf.constant([3.0]), None, tf.constant([4.0])]
        list_clipped, norm = tf.clip_by_global_norm(t_list, 2.5)
        assert list_clipped[1] is None
        clipped = sess.run([list_clipped[0], list_clipped[2]])
        np.testing.assert_allclose(np.ravel(clipped), [1.5, 2.0], rtol=1e-6)
        assert sess.run([norm, tf.global_norm(t_list)]) == [5.0, 5.0]
        known, _ = tf.clip_by_global_norm([tf.constant([3.0])], 2.5, use_norm=tf.constant(5.0))
        assert sess.run(known[0]) == [1.5]
        with pytest.raises(TypeError):
            tf.clip_by_global_norm(tf.constant([1.0]), 1.0)

    def test_a_rate_decays_every_100000_steps(self, sess):
        global_step = tf.Variable(0, trainable=False)
        starter_learning_rate = 0.1
        learning_rate = tf.train.exponential_decay(starter_learning_rate, global_step, 100000, 0.96, staircase=True)
        optimizer = tf.train.GradientDescentOptimizer(learning_rate)
        loss, _ = fitting_line()
        optimizer.minimize(loss, global_step=global_step)
        sess.run(tf.global_variables_initializer())
        for step, rate in ((0, 0.1), (99_999, 0.1), (100_000, 0.096), (250_000, 0.1 * 0.96**2)):
            sess.run(global_step.assign(step))
            assert sess.run(learning_rate) == pytest.approx(rate, rel=1e-6)


class TestMovingAverages:
    """Its moving averages: how a model is trained, and how it is evaluated."""

    def train(self, sess):
        var0, var1 = tf.Variable(0.0, name="var0"), tf.Variable(1.0, name="var1")
        my_loss = tf.square(var0 - 3.0) + tf.square(var1 - 3.0)
        opt = tf.train.GradientDescentOptimizer(0.1)
        opt_op = opt.minimize(my_loss, var_list=[var0, var1])
        ema = tf.train.ExponentialMovingAverage(decay=0.9999)
        maintain_averages_op = ema.apply([var0, var1])
        with tf.control_dependencies([opt_op]):
            training_op = tf.group(maintain_averages_op)
        sess.run(tf.global_variables_initializer())
        shadow = 0.0
        for step in range(1, 4):
            sess.run(training_op)
            shadow -= (1 - 0.9999) * (shadow - 3 * (1 - 0.8**step))
        return ema, var0, var1, shadow

    def test_training_keeps_the_averages(self, sess):
        ema, var0, var1, shadow = self.train(sess)
        assert sess.run(ema.average(var0)) == pytest.approx(shadow, rel=1e-3)
        assert ema.average(var1) in tf.all_variables()
        assert not ema.average(var0).trainable
        assert ema.average(tf.Variable(0.0)) is None
        assert ema.average_name(var0) == "var0/ExponentialMovingAverage"

    def test_evaluation_restores_the_averages(self, sess, tmp_path):
        ema, var0, var1, _ = self.train(sess)
        path = tf.train.Saver().save(sess, str(tmp_path / "model"))
        averages = sess.run([ema.average(var0), ema.average(var1)])
        shadow_var0_name = ema.average_name(var0)
        shadow_var1_name = ema.average_name(var1)
        saver = tf.train.Saver({shadow_var0_name: var0, shadow_var1_name: var1})
        saver.restore(sess, path)
        assert sess.run([var0, var1]) == averages

    def test_num_updates_lets_the_averages_move_faster_at_first(self, sess):
        var, count = tf.Variable(1.0), tf.Variable(2, trainable=False)
        op = tf.train.ExponentialMovingAverage(0.99, num_updates=count).apply([var])
        (shadow,) = tf.get_collection(tf.GraphKeys.MOVING_AVERAGE_VARIABLES) and [
            v for v in tf.all_variables() if v.name.endswith("ExponentialMovingAverage:0")
        ]
        sess.run(tf.global_variables_initializer())
        sess.run(var.assign(5.0))
        sess.run(op)
        assert sess.run(shadow) == pytest.approx(1 + (1 - 3 / 12) * 4)

    def test_averages_are_made_once_and_of_floats(self):
        var, ema = tf.Variable(1.0), tf.train.ExponentialMovingAverage(0.9)
        ema.apply([var])
        with pytest.raises(ValueError, match="Moving average already computed"):
            ema.apply([var])
        with pytest.raises(TypeError, match="must be half, float, or double"):
            ema.apply([tf.Variable(1)])


def started(coord, *works):
    threads = [threading.Thread(target=work, args=(coord,), name=work.__name__) for work in works]
    for thread in threads:
        thread.start()
    return threads


class TestCoordinator:
    """Its threads: the Coordinator's examples and the QueueRunner."""

    def test_usage(self):
        coord = tf.train.Coordinator()
        rounds = []

        def stops(coord):
            while not coord.should_stop():
                rounds.append(1)
                if len(rounds) == 10:
                    coord.request_stop()

        def waits(coord):
            while not coord.should_stop():
                coord.wait_for_stop(0.01)

        coord.join(started(coord, stops, waits))
        assert coord.should_stop()
        assert len(rounds) == 10

    def test_an_exception_is_raised_by_join(self):
        def fails(coord):
            try:
                while not coord.should_stop():
                    raise KeyError("from a thread")
            except Exception as error:
                coord.request_stop(error)

        caught = None
        try:
            coord = tf.train.Coordinator()
            threads = started(coord, fails)
            coord.join(threads)
        except Exception as error:
            caught = error
        assert isinstance(caught, KeyError)

    def test_a_thread_that_does_not_stop_in_time_is_an_error(self):
        let_go = threading.Event()

        def lags(coord):
            coord.request_stop()
            let_go.wait()

        caught = None
        threads = []
        try:
            coord = tf.train.Coordinator()
            threads = started(coord, lags)
            coord.join(threads, stop_grace_period_secs=0.05)
        except RuntimeError as error:
            caught = error
        finally:
            let_go.set()
        for thread in threads:
            thread.join()
        assert "Coordinator stopped with threads still running: lags" in str(caught)

    def test_wait_for_stop_says_whether_the_stop_came(self):
        coord = tf.train.Coordinator()
        assert not coord.wait_for_stop(timeout=0.01)
        coord.request_stop()
        assert coord.wait_for_stop()

    def test_queue_runners_fill_queues_until_the_coordinator_stops(self, sess):
        queue = tf.FIFOQueue(4, [tf.float32], shapes=[[]])
        enqueue_op = queue.enqueue(tf.constant(7.0))
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue_op] * 2))
        value = queue.dequeue()
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess=sess, coord=coord)
        # One for each enqueue op, and one that closes the queue.
        assert len(threads) == 3
        assert [sess.run(value) for _ in range(10)] == [7.0] * 10
        coord.request_stop()
        coord.join(threads)

    def test_without_a_coordinator_a_queue_runner_keeps_what_was_raised(self, sess):
        def fails():
            raise ZeroDivisionError("from the input")

        queue = tf.FIFOQueue(4, [tf.float32], shapes=[[]])
        runner = tf.train.QueueRunner(queue, [queue.enqueue(tf.py_func(fails, [], tf.float32))])
        hooks, threading.excepthook = threading.excepthook, lambda _: None
        try:
            for thread in runner.create_threads(sess, start=True):
                thread.join()
        finally:
            threading.excepthook = hooks
        assert [type(error) for error in runner.exceptions_raised] == [ZeroDivisionError]


def events_of(folder):
    return [event for file in sorted(Path(folder).glob("events.*")) for event in tf.train.summary_iterator(str(file))]


class TestSummaries:
    """Its summaries, event files and utilities."""

    def test_the_sparsity_of_a_layer(self, sess):
        z = tf.nn.relu(tf.constant([-1.0, 2.0, -3.0, -4.0]))
        summ = tf.scalar_summary("sparsity", tf.nn.zero_fraction(z))
        (value,) = tf.Summary.FromString(sess.run(summ)).value
        assert (value.tag, value.simple_value) == ("sparsity", 0.75)
        assert np.isnan(sess.run(tf.nn.zero_fraction(tf.constant([], tf.float32))))

    def test_old_summaries_are_merged(self, sess):
        tf.scalar_summary(["a", "b"], [1.0, 2.0])
        tf.histogram_summary("h", [1.0, 2.0, 2.0])
        tf.image_summary("picture", tf.ones([2, 3, 3, 1]), max_images=2)
        merged = tf.Summary.FromString(sess.run(tf.merge_all_summaries()))
        tags = [value.tag for value in merged.value]
        assert tags == ["a", "b", "h", "picture/image/0", "picture/image/1"]
        assert merged.value[2].histo.num == 3
        assert merged.value[3].image.colorspace == 1

    def test_merging_nothing_and_the_same_tag_twice(self, sess):
        assert tf.merge_all_summaries(key="empty") is None
        twice = [tf.scalar_summary("same", 1.0), tf.scalar_summary("same", 2.0)]
        with pytest.raises(tf.errors.InvalidArgumentError, match="same"):
            sess.run(tf.merge_summary(twice))

    def test_a_histogram_of_what_is_not_finite(self, sess):
        with pytest.raises((tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError), match="not finite|Nan|nan"):
            sess.run(tf.histogram_summary("h", [np.nan]))

    def test_what_a_writer_wrote_is_read_back(self, sess, tmp_path, capsys):
        loss_tensor = tf.placeholder(tf.float32, [1])
        summary = tf.scalar_summary(["loss"], loss_tensor)
        writer = tf.train.SummaryWriter(str(tmp_path), sess.graph_def, max_queue=10, flush_secs=120)
        for step, loss in enumerate([0.5, 0.25]):
            writer.add_summary(sess.run(summary, {loss_tensor: [loss]}), global_step=step)
        writer.flush()
        by_hand = tf.Summary(value=[tf.Summary.Value(tag="accuracy", simple_value=1.0)])
        writer.add_summary(by_hand, 2)
        writer.add_event(tf.Event(wall_time=1.0, step=3))
        writer.add_graph(sess.graph_def, 4)
        writer.close()
        (path,) = map(str, tmp_path.glob("events.*"))

        for e in tf.train.summary_iterator(path):
            for v in e.summary.value:
                if v.tag == "loss":
                    print(v.simple_value)
        assert capsys.readouterr().out == "0.5\n0.25\n"

        for e in tf.train.summary_iterator(path):
            print(e)
        printed = capsys.readouterr().out
        assert 'file_version: "brain.Event:2"' in printed
        assert 'tag: "accuracy"' in printed
        assert printed.count("graph_def:") == 2

    def test_the_global_step_is_10(self, capsys):
        global_step_tensor = tf.Variable(10, trainable=False, name="global_step")
        sess = tf.Session()
        sess.run(global_step_tensor.initializer)
        print("global_step:", tf.train.global_step(sess, global_step_tensor))
        assert capsys.readouterr().out == "global_step: 10\n"
        assert tf.train.global_step(sess, "global_step") == 10
        sess.close()

    @pytest.mark.parametrize("as_text", [True, False], ids=["as text", "binary"])
    def test_a_graph_is_written(self, sess, tmp_path, as_text):
        tf.Variable(0, name="my_variable")
        path = tf.train.write_graph(sess.graph_def, str(tmp_path / "my-model"), "train.pbtxt", as_text=as_text)
        data = Path(path).read_bytes()
        assert path == str(tmp_path / "my-model" / "train.pbtxt")
        if as_text:
            assert 'name: "my_variable"' in data.decode()
        else:
            assert "my_variable" in [node.name for node in tf.GraphDef.FromString(data).node]


def _rows():
    """Give the rows of the page's table: symbol and tests."""
    found = re.findall(r"^\| `?([^|`]+)`? \|[^|]*\| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return [(symbol.strip(), re.findall(r"`(tests/[^`]+)`", tests)) for symbol, tests in found if "tests/" in tests]


@functools.cache
def _tests_in(path):
    """Give the names of a file's tests, those of classes as Class::test."""
    names = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def test_the_page_covers_every_symbol_of_the_documents():
    covered = {symbol for symbol, _ in _rows()}
    assert sorted({*CONTENTS, *METHODS, *OTHERS} - covered) == []
    assert sorted(covered - {*CONTENTS, *METHODS, *OTHERS}) == []


def test_every_symbol_is_there():
    missing = []
    for symbol in (*CONTENTS, *METHODS, *OTHERS):
        if "-" in symbol or symbol in ("Optimizers", "Usage", "Slots"):
            continue
        value = tf
        for part in symbol.split("."):
            value = getattr(value, part, None)
        missing += [symbol] if value is None else []
    assert not missing


def test_the_page_names_tests_that_are_there():
    named = re.findall(r"`(tests/[^`:]+)::([^`]+)`", PAGE.read_text())
    wrong = [f"{path}::{name}" for path, name in named if not (ROOT / path).exists() or name not in _tests_in(path)]
    assert len(named) > 120
    assert not wrong
