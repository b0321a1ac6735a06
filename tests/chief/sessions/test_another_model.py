"""A program that builds another model than its run is refused before its first push, and told both sides."""

import numpy as np
import pytest
from small_model import LocalCluster

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.ps.members.presence import State
from globalstep.runtime.clock import ManualClock


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.fixture
def cluster():
    made = LocalCluster(shards=2)
    yield made
    made.close()


def graph_of(shape=(10,), dtype=np.float32, trainable=True, optimizer=None, only_b=False, name="w"):
    """A model of `b`, whose loss broadcasts whatever the shape of `b` is."""
    graph = gs.Graph()
    with graph.as_default():
        step = gs.train.get_or_create_global_step()
        b = gs.Variable(np.zeros(shape, dtype), name="b", trainable=trainable)
        trained = [b]
        if not only_b:
            trained.append(gs.Variable(np.zeros(3, np.float32), name=name))
        loss = gs.reduce_sum(gs.cast(b, gs.float32))
        for variable in trained[1:]:
            loss = loss + gs.reduce_sum(variable)
        optimizer = optimizer or (lambda: gs.train.GradientDescentOptimizer(0.1))
        train = optimizer().minimize(loss, global_step=step, var_list=[v for v in trained if v.dtype == gs.float32])
    return graph, train


def session_of(cluster, made, **options):
    with made[0].as_default():
        return gs.train.MonitoredTrainingSession(cluster.target, clock=ManualClock(), **options)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"shape": (1,)}, r"'b' is float32 \[1\] in this program.*has it as float32 \[10\]"),
        ({"dtype": np.float64}, r"'b' is float64 \[10\] in this program.*has it as float32 \[10\]"),
        ({"trainable": False}, r"'b' is not trainable in this program.*has it as trainable"),
        ({"only_b": True}, ""),
        (
            {"optimizer": lambda: gs.train.GradientDescentOptimizer(0.2)},
            r"learning_rate of optimizer 'GradientDescent' is 0.2 in this program.*has it as 0.1",
        ),
        (
            {"optimizer": lambda: gs.train.AdagradOptimizer(0.1, name="GradientDescent")},
            "'GradientDescent' is adagrad in this program.*has it as gradient_descent",
        ),
        (
            {"optimizer": lambda: gs.train.AdamOptimizer(0.1)},
            r"'b' is trained by 'Adam' \(adam\) in this program.*has it as trained by 'GradientDescent' \(gradient_de",
        ),
        ({"name": "v"}, "What 'GradientDescent' trains is 'v' in this program.*has it as 'w'"),
    ],
)
def test_a_worker_of_another_model_is_refused_at_join(cluster, other, text):
    with session_of(cluster, graph_of()):
        before = cluster.sequencer.statistics.accepted
        made = graph_of(**other)
        if not text:
            session_of(cluster, made, is_chief=False).close()
            return
        with pytest.raises(InvalidArgumentError, match=text):
            session_of(cluster, made, is_chief=False)
        assert cluster.sequencer.statistics.accepted == before


def test_a_worker_may_have_one_more_optimizer_and_averages(cluster):
    def with_more(more):
        made = graph_of()
        with made[0].as_default():
            more(made[0].get_tensor_by_name("b:0"))
        return made

    def averages(_):
        gs.train.ExponentialMovingAverage(0.9).apply(gs.trainable_variables())

    def one_more(b):
        gs.train.AdamOptimizer(0.1).minimize(gs.reduce_sum(b), var_list=gs.trainable_variables()[:1])

    with session_of(cluster, with_more(averages)):
        plain = gs.Graph()
        with plain.as_default():
            b = gs.Variable(np.zeros(10, np.float32), name="b")
            gs.train.ExponentialMovingAverage(0.9).apply([b])
        with gs.Session(cluster.target, plain) as session:
            session.compare_with_run()
        with gs.Session(cluster.target, with_more(one_more)[0]) as session:
            session.compare_with_run()


def test_a_chief_that_comes_back_with_another_model_is_refused(cluster):
    # The chief dies: its session is never closed as it should be.
    session_of(cluster, graph_of())._tf_sess().close()
    with pytest.raises(InvalidArgumentError, match=r"'b' is float32 \[4\] in this program"):
        session_of(cluster, graph_of(shape=(4,)))
    assert cluster.view().state == State.READY


def test_a_plain_session_is_refused_where_it_would_use_the_variable(cluster):
    with session_of(cluster, graph_of()):
        graph, train = graph_of(shape=(1,))
        before = cluster.sequencer.statistics.accepted
        with gs.Session(cluster.target, graph) as plain:
            # What it has alike may be read.
            assert plain.run("w:0").tolist() == [0.0, 0.0, 0.0]
            with pytest.raises(InvalidArgumentError, match=r"'b' is float32 \[1\] in this program"):
                plain.run(train)
        assert cluster.sequencer.statistics.accepted == before


def test_a_session_that_has_more_and_less_than_the_run_may_read(cluster):
    with session_of(cluster, graph_of()):
        graph = gs.Graph()
        with graph.as_default():
            b = gs.Variable(np.zeros(10, np.float32), name="b")
            gs.Variable(1.0, name="its_own")
        with gs.Session(cluster.target, graph) as evaluator:
            assert evaluator.run(b).shape == (10,)
