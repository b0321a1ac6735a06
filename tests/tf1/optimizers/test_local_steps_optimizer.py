"""LocalStepsOptimizer: rounds of a graph against DiLoCo written out in numpy, and what becomes of pushes that fail."""

import threading

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from globalstep.tf1.execution.executor import Executor
from globalstep.wire.declarations import Outcome, OutcomeKind

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(40, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 3.0], np.float32)
BATCHES = [(X[at : at + 4], Y[at : at + 4]) for at in range(0, 40, 4)]


@pytest.fixture(autouse=True)
def graph():
    with gs.Graph().as_default() as made:
        yield made


class Model:
    """A regression, trained by local steps."""

    def __init__(self, inner=None, outer=None, every=7, **options):
        self.x, self.y = gs.placeholder(gs.float32, [None, 3]), gs.placeholder(gs.float32, [None])
        self.w = gs.Variable(np.zeros(3, np.float32), name="w")
        self.step = gs.train.get_or_create_global_step()
        error = gs.reduce_sum(self.x * self.w, axis=1) - self.y
        self.loss = gs.reduce_mean(error * error)
        self.optimizer = gs.train.LocalStepsOptimizer(
            gs.train.GradientDescentOptimizer(0.05) if inner is None else inner,
            gs.train.GradientDescentOptimizer(1.0) if outer is None else outer,
            every,
            **options,
        )
        self.train_op = self.optimizer.minimize(self.loss, global_step=self.step)

    def feeds(self, at):
        return dict(zip((self.x, self.y), BATCHES[at % 10], strict=True))


def gradient(w, at):
    x, y = BATCHES[at % 10]
    return 2 * x.T @ (x @ w - y) / len(x)


class Descent:
    def __init__(self, rate=lambda step: 0.05):
        self.rate, self.steps = rate, 0

    def step(self, w, found):
        self.steps += 1
        return w - self.rate(self.steps - 1) * found


class Adam:
    """Adam with TensorFlow's formula, in float64."""

    def __init__(self, rate=0.05):
        self.rate, self.steps = rate, 0
        self.first, self.second = np.zeros(3), np.zeros(3)

    def step(self, w, found):
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * found
        self.second = 0.999 * self.second + 0.001 * found**2
        rate = self.rate * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        return w - rate * self.first / (np.sqrt(self.second) + 1e-8)


def diloco(inner, every, rounds, rate=1.0, momentum=0.0):
    w, moved, at = np.zeros(3), np.zeros(3), 0
    for _ in range(rounds):
        local = w
        for _ in range(every):
            local = inner.step(local, gradient(local, at))
            at += 1
        moved = momentum * moved + (w - local)
        w = w - rate * ((w - local) + momentum * moved if momentum else w - local)
    return w


def run_rounds(model, session, rounds, every):
    for at in range(rounds * every):
        session.run(model.train_op, model.feeds(at))
    return session.run([model.w, model.step])


@pytest.mark.parametrize("replicas", [None, 1])
@pytest.mark.parametrize("of", ["gs.train", "gs.optim"])
def test_rounds_are_those_of_diloco(cluster, replicas, of):
    if of == "gs.train":
        inner, outer = gs.train.AdamOptimizer(0.05), gs.train.MomentumOptimizer(0.7, 0.9, use_nesterov=True)
    else:
        # PyTorch's epsilon is elsewhere, and too small to be seen here.
        inner, outer = gs.optim.Adam(0.05), gs.optim.SGD(0.7, momentum=0.9, nesterov=True)
    model = Model(inner, outer, replicas=replicas)
    with gs.Session(cluster.target) as session:
        session.run(gs.global_variables_initializer())
        found, steps = run_rounds(model, session, 9, 7)
    assert steps == 9
    np.testing.assert_allclose(found, diloco(Adam(), 7, 9, 0.7, 0.9), rtol=1e-4, atol=1e-5)
    assert model.optimizer.get_slot_names() == ["momentum"]
    assert model.optimizer.variables() == [model.optimizer.get_slot(model.w, "momentum")]


def test_schedules_count_what_they_are_computed_from(cluster):
    model = Model(gs.optim.SGD(gs.optim.StepLR(0.1, step_size=5, gamma=0.5)), every=4)
    with gs.Session(cluster.target) as session:
        session.run(gs.global_variables_initializer())
        found, _ = run_rounds(model, session, 5, 4)
    np.testing.assert_allclose(found, diloco(Descent(lambda step: 0.1 * 0.5 ** (step // 5)), 4, 5), rtol=1e-4)
    with gs.Graph().as_default():
        rounds = gs.train.get_or_create_global_step()
        rate = gs.train.exponential_decay(0.1, rounds, 2, 0.5, staircase=True)
        model = Model(gs.train.GradientDescentOptimizer(rate), every=4)
        with gs.Session() as session:
            session.run(gs.global_variables_initializer())
            found, _ = run_rounds(model, session, 5, 4)
    np.testing.assert_allclose(found, diloco(Descent(lambda step: 0.1 * 0.5 ** (step // 8)), 4, 5), rtol=1e-4)


def test_runs_within_a_round_send_nothing_and_see_the_copies(cluster):
    model = Model(every=5)
    with gs.Session(cluster.target) as session:
        session.run(gs.global_variables_initializer())
        local, at = np.zeros(3), 0
        for number in range(2):
            for within in range(5):
                before = session.cluster.traffic
                w, step, _ = session.run([model.w, model.step, model.train_op], model.feeds(at))
                np.testing.assert_allclose(w, local, rtol=1e-5, atol=1e-6)
                assert step == number
                if 0 < within < 4:
                    assert session.cluster.traffic == before
                local, at = local - 0.05 * gradient(local, at), at + 1
        np.testing.assert_allclose(session.run(model.w), local, rtol=1e-5)


def fail_once(monkeypatch, at, error):
    """Have push number `at` of local steps fail."""
    count, push = [0], Executor.push

    def failing(self, sent, shapes, *kept):
        if sent.increments:
            count[0] += 1
            if count[0] == at:
                raise error
        return push(self, sent, shapes, *kept)

    monkeypatch.setattr(Executor, "push", failing)


def test_a_run_whose_push_fails_changes_nothing_and_can_be_run_again(cluster, monkeypatch):
    model = Model(gs.train.AdamOptimizer(0.05), every=3)
    fail_once(monkeypatch, 2, AbortedError("planned"))
    with gs.Session(cluster.target) as session:
        session.run(gs.global_variables_initializer())
        for at in range(9):
            if at == 5:
                with pytest.raises(AbortedError, match="planned"):
                    session.run(model.train_op, model.feeds(at))
            session.run(model.train_op, model.feeds(at))
        found, steps = session.run([model.w, model.step])
    assert steps == 3
    np.testing.assert_allclose(found, diloco(Adam(), 3, 3), rtol=1e-4, atol=1e-5)


def test_a_session_that_is_lost_loses_no_step(cluster, monkeypatch):
    model = Model(every=4)
    fail_once(monkeypatch, 2, AbortedError("planned"))
    hooks = [gs.train.StopAtStepHook(last_step=3)]
    with gs.train.MonitoredTrainingSession(cluster.target, hooks=hooks) as session:
        at = 0
        while not session.should_stop():
            session.run(model.train_op, model.feeds(at))
            at += 1
    assert at == 12
    with gs.Session(cluster.target) as session:
        found, steps = session.run([model.w, model.step])
    assert steps == 3
    # The session that takes its place goes on where the round was.
    np.testing.assert_allclose(found, diloco(Descent(), 4, 3), rtol=1e-4)


@pytest.mark.parametrize("kind", [OutcomeKind.LATE, OutcomeKind.DROPPED_STALE])
def test_a_round_that_came_too_late_is_brought_with_the_next(cluster, monkeypatch, kind):
    model = Model(every=2)
    push = Executor.push
    pushed = []

    def late(self, sent, shapes, *kept):
        if not sent.increments:
            return push(self, sent, shapes, *kept)
        pushed.append(np.array(sent.ops[0].value))
        if len(pushed) == 1:
            self.last_outcome = Outcome(kind, 0, {})
            return None
        return push(self, sent, shapes, *kept)

    monkeypatch.setattr(Executor, "push", late)
    with gs.Session(cluster.target) as session:
        session.run(gs.global_variables_initializer())
        found, steps = run_rounds(model, session, 2, 2)
    assert steps == 1
    np.testing.assert_allclose(found, diloco(Descent(), 4, 1), rtol=1e-5)
    np.testing.assert_allclose(pushed[1], -found, rtol=1e-5)


def test_numbers_that_are_not_finite_leave_nothing_behind(cluster):
    model = Model(gs.train.AdamOptimizer(0.05), every=2)
    config = gs.ConfigProto(run_policy=gs.RunPolicy(on_nan="drop", spread_above=0))
    with gs.Session(cluster.target, config=config) as session:
        session.run(gs.global_variables_initializer())
        session.run(model.train_op, {model.x: X[:4], model.y: np.full(4, np.nan, np.float32)})
        session.run(model.train_op, model.feeds(0))
        found, steps = run_rounds(model, session, 3, 2)
    assert steps == 3
    np.testing.assert_allclose(found, diloco(Adam(), 2, 3), rtol=1e-4, atol=1e-5)


def test_a_program_that_gives_new_values_begins_anew(cluster):
    model = Model(every=3)
    with gs.Session(cluster.target) as session:
        init = gs.global_variables_initializer()
        for _ in range(2):
            session.run(init)
            found, steps = run_rounds(model, session, 2, 3)
            session.run(model.train_op, model.feeds(0))
            assert steps == 2
            np.testing.assert_allclose(found, diloco(Descent(), 3, 2), rtol=1e-5)


def test_two_workers_make_each_step_together_and_stop_exactly(cluster):
    """Each worker's loss has another constant gradient: the values tell how many steps of whom are in them."""
    results, both_there = {}, threading.Barrier(2)

    def work(rank):
        with gs.Graph().as_default():
            w, step = gs.Variable(np.zeros(2, np.float32), name="w"), gs.train.get_or_create_global_step()
            inner, outer = gs.train.GradientDescentOptimizer(1.0), gs.train.GradientDescentOptimizer(1.0)
            optimizer = gs.train.LocalStepsOptimizer(inner, outer, every=4, replicas=2)
            train_op = optimizer.minimize(-float(1 + 2 * rank) * gs.reduce_sum(w), global_step=step)
            with gs.train.MonitoredTrainingSession(
                cluster.target, is_chief=rank == 0, hooks=[gs.train.StopAtStepHook(last_step=5)], log_step_count_steps=1
            ) as session:
                both_there.wait(60.0)
                runs = 0
                while not session.should_stop():
                    session.run(train_op)
                    runs += 1
            results[rank] = runs

    threads = [threading.Thread(target=work, args=(rank,), name=f"worker {rank}") for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100.0)
    assert results == {0: 20, 1: 20}
    w, step = gs.Variable(np.zeros(2, np.float32), name="w"), gs.train.get_or_create_global_step()
    with gs.Session(cluster.target) as session:
        found, steps = session.run([w, step])
    # Of each step the mean of 4 and 12.
    np.testing.assert_array_equal(found, [40, 40])
    assert steps == 5


def test_one_thread_takes_the_steps(cluster, monkeypatch):
    model = Model(every=1)
    push = Executor.push
    inside, over = threading.Event(), threading.Event()

    def slow(self, sent, shapes, *kept):
        if sent.increments:
            inside.set()
            assert over.wait(60.0)
        return push(self, sent, shapes, *kept)

    with gs.Session(cluster.target) as session:
        session.run(gs.global_variables_initializer())
        monkeypatch.setattr(Executor, "push", slow)
        other = threading.Thread(target=lambda: session.run(model.train_op, model.feeds(0)), name="other")
        other.start()
        assert inside.wait(60.0)
        with pytest.raises(FailedPreconditionError, match="from one thread"):
            session.run(model.train_op, model.feeds(1))
        over.set()
        other.join(60.0)
        assert session.run(model.step) == 1


def trained(train_op, runs, *fetches):
    """Run a train op in a session of its own; gives what the fetches came to in each run."""
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        return [session.run([*fetches, train_op])[:-1] for _ in range(runs)]


def halving(loss, **options):
    """Local steps that halve Variables whose squares are the loss."""
    inner, outer = gs.train.GradientDescentOptimizer(0.25), gs.train.GradientDescentOptimizer(1.0)
    optimizer = gs.train.LocalStepsOptimizer(inner, outer, every=2)
    return optimizer.minimize(loss, gs.train.get_or_create_global_step(), **options)


def test_rates_may_be_functions_of_the_step_that_they_are_for():
    w = gs.Variable([1.0, 2.0])
    own, rounds = [], []
    inner = gs.optim.SGD(lambda step: own.append(step) or 0.1)
    outer = gs.optim.SGD(lambda step: rounds.append(step) or 1.0)
    optimizer = gs.train.LocalStepsOptimizer(inner, outer, every=2)
    train_op = optimizer.minimize(gs.reduce_sum(w * w), gs.train.get_or_create_global_step())
    made = len(own), len(rounds)
    trained(train_op, 6)
    assert (own[made[0] :], rounds[made[1] :]) == ([0, 1, 2, 3, 4, 5], [0, 1, 2])


def test_parts_of_a_variable_have_copies_of_their_own():
    options = {"initializer": gs.ones_initializer(), "partitioner": gs.fixed_size_partitioner(2)}
    table = gs.get_variable("table", [4, 2], **options)
    rows = gs.nn.embedding_lookup(table, [0, 3])
    found = trained(halving(gs.reduce_sum(rows * rows)), 4, gs.convert_to_tensor(table))
    for run, (seen,) in enumerate(found):
        assert sorted(seen[:, 0]) == [0.5**run, 0.5**run, 1.0, 1.0]


def test_what_follows_the_train_op_and_slims_train_op_run_it():
    w = gs.Variable([1.0, 2.0])
    train_op = halving(gs.reduce_sum(w * w))
    with gs.control_dependencies([train_op]):
        follows = gs.group(gs.identity(w))
    assert [list(seen) for (seen,) in trained(follows, 3, w)] == [[1, 2], [0.5, 1], [0.25, 0.5]]
    with gs.Graph().as_default():
        w = gs.Variable([1.0, 2.0])
        step = gs.train.get_or_create_global_step()
        optimizer = gs.train.LocalStepsOptimizer(gs.optim.SGD(0.25), gs.optim.SGD(1.0), every=2)
        train_op = gs.contrib.slim.learning.create_train_op(gs.reduce_sum(w * w), optimizer, global_step=step)
        assert trained(train_op, 3, step) == [[0], [0], [1]]


def test_a_branch_cannot_take_a_local_step():
    w, step = gs.Variable([1.0]), gs.train.get_or_create_global_step()
    chosen = gs.placeholder(gs.bool, [])
    optimizer = gs.train.LocalStepsOptimizer(SGD, SGD, every=2)

    def train():
        return gs.group(optimizer.minimize(gs.reduce_sum(w * w), step))

    with pytest.raises(InvalidArgumentError, match="cannot be in a branch"):
        gs.cond(chosen, train, gs.no_op)


SGD = gs.optim.SGD(0.1)


@pytest.mark.parametrize(
    ("inner", "outer", "options", "said"),
    [
        (SGD, SGD, {"every": 0}, "every is 0"),
        (SGD, SGD, {"every": 5, "replicas": True}, "replicas is True"),
        (0.1, SGD, {"every": 5}, "inner is 0.1; it must be an optimizer"),
        (SGD, "together", {"every": 5}, "Give replicas="),
    ],
)
def test_optimizers_and_numbers_that_cannot_be_are_refused(inner, outer, options, said):
    if outer == "together":
        outer = gs.train.SyncReplicasOptimizer(gs.train.GradientDescentOptimizer(1.0), 2)
    with pytest.raises(InvalidArgumentError, match=said):
        gs.train.LocalStepsOptimizer(inner, outer, **options)


def test_graphs_that_cannot_be_are_refused():
    def apply(variable, step, outer=SGD):
        return gs.train.LocalStepsOptimizer(SGD, outer, 2).minimize(
            gs.reduce_sum(variable * variable), step, [variable]
        )

    w, step = gs.Variable([1.0]), gs.train.get_or_create_global_step()
    with pytest.raises(ValueError, match="Global step is required"):
        apply(w, None)
    with pytest.raises(ValueError, match="has a constraint"):
        apply(gs.Variable([1.0], constraint=lambda value: value), step)
    with pytest.raises(ValueError, match="this process's own already"):
        apply(gs.Variable([1.0], collections=[gs.GraphKeys.LOCAL_VARIABLES]), step)
    with pytest.raises(ValueError, match="No gradients provided"):
        gs.train.LocalStepsOptimizer(SGD, SGD, 2).apply_gradients([(None, w)], step)
    with pytest.raises(InvalidArgumentError, match="learning_rate of outer is 'rate:0'"):
        apply(w, step, gs.train.GradientDescentOptimizer(gs.placeholder(gs.float32, [], name="rate")))
    apply(w, step)
    with pytest.raises(ValueError, match="has local steps already"):
        apply(w, step)


def test_runs_that_cannot_be_are_refused(cluster):
    model = Model()
    with gs.control_dependencies([model.train_op]):
        clipped = model.w.assign(gs.clip_by_value(model.w, -1.0, 1.0))
    with gs.Session(cluster.target) as session:
        session.run(gs.global_variables_initializer())
        with pytest.raises(InvalidArgumentError, match="changes w in a run that takes local steps"):
            session.run(clipped, model.feeds(0))
    config = gs.ConfigProto(pushes_in_flight=1)
    refused = pytest.raises(InvalidArgumentError, match="does not go with pushes_in_flight")
    with gs.Session(cluster.target, config=config) as session, refused:
        session.run(model.train_op, model.feeds(0))
