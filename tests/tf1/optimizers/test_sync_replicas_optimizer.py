"""SyncReplicasOptimizer by itself: what it refuses, its parts, and a worker alone."""

import numpy as np
import pytest

import globalstep as gs


@pytest.fixture(autouse=True)
def graph():
    with gs.Graph().as_default() as made:
        yield made


def together(replicas=1, **options):
    return gs.train.SyncReplicasOptimizer(gs.train.GradientDescentOptimizer(0.5), replicas, **options)


def test_what_it_cannot_do_is_refused():
    value, step = gs.Variable(1.0), gs.train.get_or_create_global_step()
    with pytest.raises(ValueError, match="Must supply at least one variable"):
        together().apply_gradients([], global_step=step)
    with pytest.raises(ValueError, match="Global step is required to check staleness"):
        together().minimize(value)
    bound = gs.Variable(1.0, constraint=lambda x: x)
    with pytest.raises(ValueError, match="Variables with a constraint"):
        together().minimize(bound, global_step=step)
    own = gs.Variable(1.0, collections=[gs.GraphKeys.LOCAL_VARIABLES])
    with pytest.raises(ValueError, match="local Variables"):
        together().minimize(own, var_list=[own], global_step=step)


def test_before_gradients_are_applied_it_has_no_parts():
    fresh = together()
    with pytest.raises(ValueError, match="Should be called after apply_gradients"):
        fresh.get_chief_queue_runner()
    with pytest.raises(ValueError, match="apply_gradients"):
        fresh.get_init_tokens_op()
    with pytest.raises(ValueError, match="apply_gradient should be called before using the hook"):
        fresh.make_session_run_hook(is_chief=True).begin()


def test_a_worker_alone_makes_its_steps(cluster):
    value, step = gs.Variable(np.ones(3, np.float32)), gs.train.get_or_create_global_step()
    optimizer = together()
    train = optimizer.minimize(gs.reduce_sum(value), global_step=step)
    assert [local.name for local in gs.local_variables()] == ["sync_rep_local_step:0"]
    with gs.train.MonitoredTrainingSession(cluster.target, hooks=[optimizer.make_session_run_hook(True)]) as session:
        for count in range(1, 4):
            session.run(train)
            found, steps = session.run([value, step])
            np.testing.assert_array_equal(found, np.full(3, 1 - 0.5 * count))
            assert steps == count


def test_averages_move_once_a_step(cluster):
    value, step = gs.Variable(1.0), gs.train.get_or_create_global_step()
    averages = gs.train.ExponentialMovingAverage(0.5)
    optimizer = together(variable_averages=averages, variables_to_average=[value])
    train = optimizer.minimize(value, global_step=step)
    with gs.train.MonitoredTrainingSession(cluster.target, hooks=[optimizer.make_session_run_hook(True)]) as session:
        session.run(train)
        assert session.run([value, averages.average(value)]) == [0.5, 0.75]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_of_a_floating_dtype_counts_along(cluster, dtype):
    value = gs.Variable(1.0)
    step = gs.get_variable("global_step", [], dtype=dtype, initializer=gs.constant_initializer(0), trainable=False)
    optimizer = together()
    train = optimizer.minimize(value, global_step=step)
    with gs.train.MonitoredTrainingSession(cluster.target, hooks=[optimizer.make_session_run_hook(True)]) as session:
        for count in range(1, 4):
            session.run(train)
            assert session.run([value, step]) == [1 - 0.5 * count, float(count)]


@pytest.mark.parametrize("total", [None, 3], ids=["as many replicas", "fewer replicas"])
def test_a_worker_alone_gives_all_gradients_of_a_step(total):
    fed, w = gs.placeholder("float32", []), gs.Variable(0.0)
    step = gs.train.get_or_create_global_step()
    optimizer = gs.train.SyncReplicasOptimizer(gs.train.GradientDescentOptimizer(1.0), 6, total)
    train = optimizer.apply_gradients([(fed, w)], global_step=step)
    with gs.train.MonitoredTrainingSession(hooks=[optimizer.make_session_run_hook(True)]) as session:
        found = [session.run(train, {fed: -float(number)}) for number in range(12)]
        assert found == [0] * 5 + [1] * 6 + [2]
        # The means of 0 to 5 and of 6 to 11.
        assert session.run([w, step]) == [2.5 + 8.5, 2]
