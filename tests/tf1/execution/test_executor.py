"""What a run reads, evaluates and pushes, and in how many messages."""

import re
import sys
import threading

import numpy as np
import pytest
from recording_cluster import recorded

import globalstep as gs
from globalstep.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.mutations import Mutation, MutationPart, OptimizerSpec
from globalstep.tf1.ops.constant_ops import placeholder
from globalstep.tf1.ops.control_flow_ops import group
from globalstep.tf1.ops.indexing_ops import gather
from globalstep.tf1.ops.math_ops import square
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.wire.declarations import OpKind, Outcome, OutcomeKind, Push
from globalstep.worker.protocol.push_result import PushResult


@pytest.fixture
def clock():
    return ManualClock()


cluster = pytest.fixture(recorded)


@pytest.fixture
def run(cluster, clock):
    """A function that runs fetches in a session whose Variables have been initialized."""
    session = gs.Session(cluster=cluster, clock=clock)

    def run(fetches, feed_dict=None):
        if not cluster.variables:
            session.run(gs.global_variables_initializer())
            cluster.forget()
        return session.run(fetches, feed_dict)

    run.session = session
    yield run
    session.close()


def _sgd(rate=1.0, **options):
    return OptimizerSpec("sgd", "gradient_descent", {"learning_rate": rate}, options.pop("slots", {}), **options)


def _apply(variable, gradient, step=None, spec=None):
    spec = spec or _sgd()
    spec.slots.setdefault(variable, ())
    part = MutationPart(OpKind.APPLY, variable, as_node(gradient), optimizer=spec)
    return Mutation([part], increments=[] if step is None else [(step, 1)], uses=[spec], op_type="NoOp")


def _traced(log, name, value=None):
    """A stateful node that notes when it is evaluated."""

    def note(*inputs):
        log.append(name)
        return np.float32(value if value is not None else inputs[0] if inputs else 0)

    return lambda *inputs: Node("Traced", inputs, note, name=name, dtype=gs.float32, shape=[], stateful=True)


class TestReading:
    def test_all_variables_in_one_cut(self, run, cluster):
        a, b, unused = gs.Variable(1.0, name="a"), gs.Variable(2.0, name="b"), gs.Variable(3.0)
        assert run([a + b, a * b, unused.initial_value]) == [3.0, 2.0, 3.0]
        assert cluster.pulls == [["a", "b"]]
        assert cluster.pushes == []

    def test_nothing_is_read_for_constants_and_feeds(self, run, cluster):
        w, x = gs.Variable(1.0), placeholder(gs.float32, [])
        run(w)
        cluster.forget()
        assert run([x + 1.0, w * 2.0], {x: 1.0, w: 5.0}) == [2.0, 10.0]
        assert cluster.pulls == []

    def test_rows_only(self, run, cluster):
        table = gs.Variable(np.arange(12, dtype=np.float32).reshape(6, 2), name="t")
        ids = placeholder(gs.int32, [None, 2])
        rows = gather(table, ids)
        found = run(rows, {ids: [[0, 5], [5, 1]]})
        np.testing.assert_array_equal(found[:, :, 0], [[0, 10], [10, 2]])
        assert cluster.pulls == [["t[...]"]]

    def test_rows_whose_ids_depend_on_a_variable(self, run, cluster):
        table = gs.Variable(np.arange(4, dtype=np.float32), name="t")
        which = gs.Variable([2], name="which")
        assert run(gather(table, which + 1)).tolist() == [3.0]
        assert cluster.pulls == [["which"], ["t[...]"]]

    def test_after_what_waits_for_input(self, run, cluster):
        """A dequeue may take its time: Variables are read when it is through."""
        pulls_before = []

        def dequeue():
            pulls_before.append(len(cluster.pulls))
            return np.float32(2.0)

        v = gs.Variable(1.0, name="v")
        product = v * Node("QueueDequeueV2", (), dequeue, dtype=gs.float32, shape=[], stateful=True)
        run(v)
        cluster.forget()
        assert run(product) == 2.0
        assert pulls_before == [0]
        assert len(cluster.pulls) == 1

    def test_rows_out_of_range(self, run):
        table = gs.Variable(np.arange(4, dtype=np.float32), name="t")
        with pytest.raises(InvalidArgumentError, match="'t'"):
            run(gather(table, [4]))

    def test_values_read_are_the_callers(self, run):
        w = gs.Variable([1.0, 2.0])
        found = run([w, w])
        found[0][:] = 7
        np.testing.assert_array_equal(run(w), [1, 2])
        constant = as_node([1.0, 2.0])
        run(constant)[:] = 7
        np.testing.assert_array_equal(run(constant), [1, 2])

    def test_a_node_that_writes_into_its_input_is_told(self, run):
        w = gs.Variable([1.0, 2.0])

        def spoil(value):
            value[0] = 9
            return value

        with pytest.raises(InvalidArgumentError, match=r"read-only.*'spoil'"):
            run(Node("Spoil", (w,), spoil, name="spoil", dtype=gs.float32, shape=[2]))
        np.testing.assert_array_equal(run(w), [1, 2])


class TestEvaluating:
    def test_each_node_once_a_run(self, run):
        log = []
        drawn = _traced(log, "draw", 2.0)()
        assert run([drawn + 1.0, drawn * drawn, drawn]) == [3.0, 4.0, 2.0]
        assert log == ["draw"]

    def test_unfed_placeholder(self, run, cluster):
        x = placeholder(gs.float32, [None, 3], name="x")
        w = gs.Variable(1.0)
        run(w)
        cluster.forget()
        with pytest.raises(
            InvalidArgumentError,
            match=r"^You must feed a value for placeholder tensor 'x' with dtype float and shape \[\?,3\]\n",
        ) as caught:
            run([w.assign(2.0), x])
        assert str(caught.value).endswith("shape [?,3]")  # the rest is a note
        assert cluster.pushes == []

    def test_what_a_fed_node_needs_is_not_needed(self, run):
        x = placeholder(gs.float32, [])
        y = x + 1.0
        assert run(y * 2.0, {y: 5.0}) == 10.0

    def test_errors_name_the_programs_line_that_made_the_node(self, run):
        a, b = placeholder(gs.float32, [None, None], name="a"), placeholder(gs.float32, [None, None])
        line = sys._getframe().f_lineno + 1
        product = matmul(a, b, name="product")
        here = rf"{re.escape(__file__)}:{{}}, in test_errors_name_the_programs_line_that_made_the_node"
        assert re.fullmatch(here.format(line), product.defined_at)
        with pytest.raises(InvalidArgumentError, match=rf"\(3, 1\), defined at {here.format(line)}\]$"):
            run(product, {a: np.ones((1, 2)), b: np.ones((3, 1))})
        with pytest.raises(InvalidArgumentError, match="must feed a value for placeholder tensor 'a'") as caught:
            run(product, {b: np.ones((3, 1))})
        (note,) = caught.value.__notes__
        assert re.fullmatch(rf"The placeholder was defined at {here.format(line - 2)}\.", note)
        # What the package makes by itself bears the line that asked for it.
        w = gs.Variable([1.0], name="w")
        train_op = gs.train.AdamOptimizer().minimize(gs.reduce_sum(w * w))
        assert re.fullmatch(here.format(line + 11), train_op.defined_at)

    def test_a_programs_own_exception_passes(self, run):
        def fail():
            raise KeyError("mine")

        node = Node("PyFunc", (), fail, name="own", dtype=gs.float32, shape=[], stateful=True)
        with pytest.raises(KeyError, match="mine") as caught:
            run(node)
        assert caught.value.__notes__ == [f"In node 'own' (PyFunc, defined at {node.defined_at})."]

    def test_control_inputs_come_first(self, run):
        log = []
        second = _traced(log, "second")
        with gs.control_dependencies([group(_traced(log, "first")())]):
            node = second()
        run(node)
        assert log == ["first", "second"]


class TestPushing:
    def test_a_training_step_is_one_pull_and_one_push(self, run, cluster):
        w, step = gs.Variable([1.0, 2.0], name="w"), gs.train.create_global_step()
        loss = reduce_sum(square(w))
        train = _apply(w, gs.gradients(loss, w)[0], step)
        assert run([train, loss]) == [None, 5.0]
        assert cluster.pulls == [["w", "global_step"]]
        (push,) = cluster.pushes
        assert [(op.kind, op.variable, op.value.tolist()) for op in push.ops] == [(OpKind.APPLY, "w", [2.0, 4.0])]
        assert [(increment.step, increment.by) for increment in push.increments] == [("global_step", 1)]
        assert [(use.optimizer, use.finish) for use in push.uses] == [("sgd", True)]
        assert push.seen_steps == {"global_step": 0}
        assert [np.asarray(v).tolist() for v in run([w, step])] == [[-1.0, -2.0], 1]
        assert run.session.last_outcome.steps == {"global_step": 1}

    def test_a_fetched_variable_is_as_before_and_an_assign_as_after(self, run, cluster):
        w = gs.Variable(1.0, name="w")
        assert run([w, w.assign(5.0), w + 1.0]) == [1.0, 5.0, 2.0]
        assert (len(cluster.pulls), len(cluster.pushes)) == (1, 1)

    def test_what_follows_a_push_sees_it(self, run, cluster):
        w = gs.Variable(1.0, name="w")
        with gs.control_dependencies([w.assign(5.0)]):
            after = w.read_value() + 1.0
        assert run([w, after]) == [1.0, 6.0]
        assert cluster.pulls == [["w"]]
        assert [read.variable for read in cluster.pushes[0].reads] == ["w"]

    def test_mutations_in_a_chain_share_a_push_where_nothing_can_tell(self, run, cluster):
        w, step = gs.Variable(1.0, name="w"), gs.train.create_global_step()
        average = gs.Variable(0.0, name="average", trainable=False, primary=w)
        count = gs.Variable(0.0, name="count", trainable=False)
        train = _apply(w, 0.5, step)
        with gs.control_dependencies([train]):
            copy = Mutation([MutationPart(OpKind.ASSIGN, average, source=w)], op_type="Assign")
            more = count.assign_add(1.0)
        run(group(copy, more))
        assert len(cluster.pushes) == 1
        assert run([w, average, count, step]) == [0.5, 0.5, 1.0, 1]

    def test_a_rate_assigned_before_is_the_rate_applied(self, run, cluster):
        w, rate = gs.Variable(1.0, name="w"), gs.Variable(1.0, name="rate", trainable=False)
        with gs.control_dependencies([rate.assign(0.25)]):
            train = _apply(w, 1.0, spec=_sgd(rate))
        run(train)
        assert len(cluster.pushes) == 2
        assert run(w) == 0.75

    def test_an_average_behind_a_train_op_sees_the_step_after_it(self, run, cluster):
        w, step = gs.Variable(1.0, name="w"), gs.train.create_global_step()
        with gs.control_dependencies([_apply(w, 1.0, step)]):
            average = gs.train.ExponentialMovingAverage(0.9, num_updates=step)
            follow = average.apply([w])
        run(follow)
        assert len(cluster.pushes) == 1
        decay = (1 + 1) / (10 + 1)
        np.testing.assert_allclose(run(average.average(w)), 1.0 - (1 - decay) * (1.0 - 0.0), rtol=1e-6)

    @pytest.mark.parametrize("kind", ["operand read after", "step assigned", "step moved twice", "same value wanted"])
    def test_mutations_in_a_chain_part_where_something_can(self, run, cluster, kind):
        w, step = gs.Variable(1.0, name="w"), gs.train.create_global_step()
        other = gs.Variable(0.0, name="other")
        first = w.assign(3.0) if kind == "same value wanted" else _apply(w, 0.5, step)
        with gs.control_dependencies([first]):
            second = {
                "operand read after": lambda: other.assign(w),
                "step assigned": lambda: step.assign(np.int64(10)),
                "step moved twice": lambda: step.assign_add(1),
                "same value wanted": lambda: w.assign(4.0),
            }[kind]()
        found = run([first, second])
        assert len(cluster.pushes) == 2
        assert (
            found
            == {
                "operand read after": [None, 0.5],
                "step assigned": [None, 10],
                "step moved twice": [None, 2],
                "same value wanted": [3.0, 4.0],
            }[kind]
        )

    def test_a_constant_made_under_control_dependencies_delays_nothing(self, run, cluster):
        w = gs.Variable(1.0, name="w")
        with gs.control_dependencies([w.assign(2.0)]):
            add = gs.assign_add(w, as_node(1.0) * 3.0)
        assert run(add) == 5.0
        assert len(cluster.pushes) == 1

    def test_update_ops_before_a_train_op_cost_no_second_forward_pass(self, run, cluster):
        log = []
        w, mean = gs.Variable(3.0, name="w"), gs.Variable(0.0, name="mean", trainable=False)

        def noted(value):
            log.append("forward")
            return value * value

        loss = Node("Square", (w,), noted, dtype=gs.float32, shape=[])
        with gs.control_dependencies([mean.assign(loss)]):
            train = _apply(w, gs.gradients(loss, w)[0])
        assert run([train, loss]) == [None, 9.0]
        assert log == ["forward"]
        assert len(cluster.pushes) == 1
        assert run([w, mean]) == [-3.0, 9.0]

    def test_a_hyper_parameter_that_is_no_number(self, run, cluster):
        w = gs.Variable(1.0, name="w")
        with pytest.raises(InvalidArgumentError, match=r"learning_rate of optimizer 'sgd' must be one number"):
            run(_apply(w, 1.0, spec=_sgd(lambda: [1.0, 2.0])))
        assert cluster.pushes == []

    def test_an_optimizer_made_after_initializing_is_declared(self, run, cluster):
        w = gs.Variable(1.0, name="w")
        run(w)
        run(_apply(w, 0.5))
        assert run(w) == 0.5

    def test_eager_parts_are_pushed_one_by_one(self, run, cluster):
        a, b, step = gs.Variable(1.0, name="a"), gs.Variable(1.0, name="b"), gs.train.create_global_step()
        spec = _sgd(slots={a: (), b: ()})
        updates = []
        for variable in (a, b):
            part = MutationPart(OpKind.APPLY, variable, as_node(0.5), optimizer=spec)
            updates.append(Mutation([part]))
            updates[-1].attrs["eager"] = True
        run(Mutation([], increments=[(step, 1)], uses=[spec], control_inputs=updates))
        assert [[op.variable for op in push.ops] for push in cluster.pushes] == [["a"], ["b"], []]
        assert [push.uses[0].finish for push in cluster.pushes] == [False, False, True]
        assert run([a, b, step]) == [0.5, 0.5, 1]

    def test_dtype_that_does_not_fit(self, run, cluster):
        w = gs.Variable(1, name="w")
        untyped = Node("PyFunc", (), lambda: np.float64(1.5), dtype=None, stateful=True)
        with pytest.raises(InvalidArgumentError, match="Variable 'w' has dtype int32, its operand has float64"):
            run(w.assign(untyped))

    def test_an_operand_is_converted_beside_one_that_fits(self, run, cluster):
        a, b = gs.Variable(1.0, name="a"), gs.Variable(1.0, name="b")
        given = iter([np.float64(0.5), np.float32(0.5)])
        untyped = Node("PyFunc", (), lambda: np.asarray(next(given)), dtype=None, stateful=True)
        spec = _sgd(slots={a: (), b: ()})
        parts = [MutationPart(OpKind.APPLY, v, g, optimizer=spec) for v, g in ((a, as_node(0.5)), (b, untyped))]
        update = Mutation(parts, uses=[spec])
        for _ in range(2):
            run(update)
        assert [[op.value.dtype.name for op in push.ops] for push in cluster.pushes] == [["float32"] * 2] * 2
        assert run([a, b]) == [0.0, 0.0]


class TestOutcomes:
    def test_dropped_as_stale(self, run, cluster):
        w = gs.Variable(1.0, name="w")
        add = w.assign_add(1.0)
        with gs.control_dependencies([add]):
            after = w.read_value()
        run(w)
        cluster.results = [PushResult(Outcome(OutcomeKind.DROPPED_STALE))]
        assert run([add, after]) == [1.0, 1.0]

    def test_abandoned(self, run, cluster):
        add = gs.Variable(1.0, name="w").assign_add(1.0)
        run(add)
        cluster.results = [PushResult(Outcome(OutcomeKind.ABANDONED))]
        with pytest.raises(AbortedError):
            run(add)


class TestReusing:
    @pytest.fixture
    def train(self, run):
        run.session._executor.reuse_values = True
        w, step = gs.Variable(1.0, name="w"), gs.train.create_global_step()
        loss = square(w) * 1.0
        return [_apply(w, gs.gradients(loss, w)[0] * 0.25, step), loss]

    def test_not_after_being_told(self, run, cluster, train):
        run(train)
        cluster.client.push(Push(ops=[]))
        run.session.forget_values()
        run(train)
        assert len(cluster.pulls) == 2

    def test_not_by_a_run_that_only_reads(self, run, cluster, train):
        run(train)
        cluster.forget()
        assert run(gs.global_variables()[0]) == 0.5
        assert cluster.pulls == [["w"]]


class TestCluster:
    def test_a_variable_that_only_this_graph_has(self, run, cluster):
        w = gs.Variable(1.0, name="w")
        run(w)
        late = gs.Variable(2.0, name="late")
        with pytest.raises(FailedPreconditionError, match="Attempting to use uninitialized value late"):
            run(late)
        with pytest.raises(FailedPreconditionError, match="Attempting to use uninitialized value late"):
            run(late.assign_add(1.0))
        run(late.initializer)
        assert run(late.assign_add(1.0)) == 3.0

    def test_threads_share_a_session(self, run):
        total = gs.Variable(0.0, name="total")
        add = total.assign_add(1.0)
        run(total)
        failed = []

        def work():
            try:
                for _ in range(25):
                    run(add)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work, name=f"adder-{i}") for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert run(total) == 100.0
