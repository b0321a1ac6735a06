"""Rows that the next run looks up come with this run's push, and are used only where a read would give the like."""

from __future__ import annotations

import numpy as np
import pytest
from recording_cluster import RecordingCluster

import globalstep as gs
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Push

ROWS = 10
START = np.arange(2.0 * ROWS, dtype=np.float32).reshape(ROWS, 2)


class Model:
    """Each run takes 1 from all numbers of the rows that it names, for each time that it names them."""

    def __init__(self, cluster, clock, parts=1):
        self.cluster = cluster
        self.clock = clock
        self.step = gs.train.create_global_step()
        self.ids = gs.placeholder(gs.int64, [None], name="ids")
        self.scale = gs.placeholder_with_default(np.float32(1.0), [], name="scale")
        initial = gs.constant_initializer(START) if parts == 1 else gs.zeros_initializer()
        cut = None if parts == 1 else gs.fixed_size_partitioner(parts)
        table = gs.get_variable("table", [ROWS, 2], initializer=initial, partitioner=cut)
        self.rows = gs.nn.embedding_lookup(table, self.ids, partition_strategy="div")
        loss = gs.reduce_sum(self.rows) * self.scale
        self.train = gs.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=self.step)
        self.session = gs.Session(cluster=cluster, clock=clock)
        self.session.run(gs.global_variables_initializer())
        cluster.forget()

    def run(self, ids, ahead=None):
        """Run once, give the rows looked up."""
        if ahead is not None:
            self.session.prefetch({self.ids: ahead})
        return self.session.run([self.train, self.rows], {self.ids: ids})[1]

    @property
    def pulls(self):
        return len(self.cluster.pulls)


@pytest.fixture
def model():
    cluster = RecordingCluster()
    built = Model(cluster, ManualClock())
    yield built
    built.session.close()
    cluster.close()


def test_a_step_is_one_message(model):
    values = START.copy()
    batches = [[1, 2, 1], [2, 2, 3], [0, 1], [5]]
    for at, ids in enumerate(batches):
        found = model.run(ids, batches[at + 1] if at + 1 < len(batches) else None)
        np.testing.assert_array_equal(found, values[ids])
        np.subtract.at(values, ids, 1)

    assert model.pulls == 1
    assert [push.seen_steps["global_step"] for push in model.cluster.pushes] == [0, 1, 2, 3]


def test_what_others_push_meanwhile_is_counted_as_staleness(model):
    model.run([1], ahead=[2])
    model.cluster.client.push(Push(increments=[gs_increment(model)]))
    model.run([2])

    assert model.pulls == 1
    assert model.session.last_outcome.staleness == 1


def gs_increment(model):
    return model.cluster.pushes[-1].increments[0]


def test_without_a_word_every_run_reads(model):
    model.run([1])
    model.run([1])
    assert model.pulls == 2


def test_other_rows_than_announced_are_read(model):
    model.run([1, 2], ahead=[3, 4])
    np.testing.assert_array_equal(model.run([4, 3]), START[[4, 3]])
    assert model.pulls == 2


def test_an_announcement_serves_once(model):
    model.run([1], ahead=[2])
    model.run([2])
    model.run([2])
    assert model.pulls == 2


def test_rows_are_not_used_after_a_second(model):
    model.run([1], ahead=[2])
    model.clock.advance(1.0)
    model.run([2])
    assert model.pulls == 2


def test_rows_are_not_used_after_another_push_of_the_session(model):
    model.run([1], ahead=[2])
    model.session.run(gs.trainable_variables()[0].assign(START * 10))
    np.testing.assert_array_equal(model.run([2]), START[[2]] * 10)


def test_rows_are_not_used_by_a_run_that_only_reads(model):
    model.run([1], ahead=[2])
    model.session.run(model.rows, {model.ids: [2]})
    assert model.pulls == 2


def test_the_next_batch_may_be_written_into_the_same_array(model):
    ids = np.array([1, 2])
    model.session.prefetch({model.ids: ids})
    ids[:] = [3, 4]
    model.session.run(model.train, {model.ids: ids})
    ids[:] = [5, 6]
    np.testing.assert_array_equal(model.run(ids), START[[5, 6]])


@pytest.mark.parametrize("wrong", [[-1], [ROWS]])
def test_an_id_that_is_no_row_fails_its_own_run_and_not_the_one_before(model, wrong):
    model.run([1], ahead=wrong)
    with pytest.raises(gs.errors.InvalidArgumentError, match="Row id"):
        model.run(wrong)
    np.testing.assert_array_equal(model.run([1]), START[[1]] - 1)


def test_ids_that_are_not_told_are_read_by_their_run(model):
    model.session.prefetch({model.scale: 2.0})
    model.run([1])
    np.testing.assert_array_equal(model.run([1]), START[[1]] - 1)
    assert model.pulls == 2


def test_a_feed_that_does_not_fit_is_refused(model):
    with pytest.raises(ValueError, match="Cannot feed value of shape"):
        model.session.prefetch({model.ids: [[1]]})


def test_ids_from_what_has_an_effect_are_not_computed_beforehand():
    cluster = RecordingCluster()
    clock = ManualClock()
    gs.train.create_global_step()
    ids = gs.random_uniform([3], 0, ROWS, gs.int64, seed=1)
    table = gs.get_variable("table", [ROWS, 2], initializer=gs.zeros_initializer())
    rows = gs.nn.embedding_lookup(table, ids)
    train = gs.train.GradientDescentOptimizer(1.0).minimize(gs.reduce_sum(rows * rows))
    with gs.Session(cluster=cluster, clock=clock) as session:
        session.run(gs.global_variables_initializer())
        cluster.forget()
        for _ in range(2):
            session.prefetch({})
            session.run(train)
    assert len(cluster.pulls) == 2
    cluster.close()


def test_a_table_in_parts_on_several_tasks_is_read_with_the_push_too():
    cluster = RecordingCluster(shards=2)
    model = Model(cluster, ManualClock(), parts=2)
    model.run([1, 7, 7], ahead=[7, 8])
    np.testing.assert_array_equal(model.run([7, 8]), [[-2, -2], [0, 0]])
    assert model.pulls == 1
    model.session.close()
    cluster.close()


def test_the_hook_feeds_all_batches_and_stops():
    gs.train.create_global_step()
    ids = gs.placeholder(gs.int64, [None])
    table = gs.get_variable("table", [ROWS, 2], initializer=gs.zeros_initializer())
    rows = gs.nn.embedding_lookup(table, ids)
    train = gs.train.GradientDescentOptimizer(1.0).minimize(gs.reduce_sum(rows), global_step=gs.train.get_global_step())
    batches = [[1, 1], [1, 2], [2, 3]]
    found = []
    with gs.train.MonitoredTrainingSession(
        hooks=[gs.train.PrefetchLookupHook({ids: batch} for batch in batches)], log_step_count_steps=None
    ) as session:
        while not session.should_stop():
            found.append(session.run([train, rows])[1][:, 0].tolist())

    assert found == [[0, 0], [-2, 0], [-1, 0]]


def test_the_hook_without_batches_says_so():
    ids = gs.placeholder(gs.int64, [None])
    gs.train.create_global_step()
    table = gs.get_variable("table", [ROWS, 2], initializer=gs.zeros_initializer())
    rows = gs.nn.embedding_lookup(table, ids)
    hook = gs.train.PrefetchLookupHook([])
    with (
        pytest.raises(ValueError, match="PrefetchLookupHook was given no batches"),
        gs.train.MonitoredTrainingSession(hooks=[hook], log_step_count_steps=None) as session,
    ):
        session.run(rows)
