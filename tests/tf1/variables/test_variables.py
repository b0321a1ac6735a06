import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.tf1.graph.graph import GraphKeys, Node, as_node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.ops.constant_ops import placeholder


class TestMaking:
    def test_repr_is_that_of_the_seed(self):
        step = gs.Variable(np.int64(0), trainable=False, name="global_step")
        assert repr(step) == "<tf.Variable 'global_step:0' shape=() dtype=int64_ref>"

    def test_names_are_unique_and_scoped(self):
        with gs.name_scope("layer"):
            first, second = gs.Variable(0.0, name="w"), gs.Variable(0.0, name="w")
        assert [first.name, second.op.name, gs.Variable(1).name] == ["layer/w:0", "layer/w_1", "Variable:0"]
        assert first.initializer.name == "layer/w/Assign"
        assert first.initial_value.name == "layer/w/initial_value:0"

    @pytest.mark.parametrize(
        ("initial", "dtype", "shape"),
        [(1.5, "float32", []), (3, "int32", []), (np.zeros((2, 3)), "float64", [2, 3]), ([True], "bool", [1])],
    )
    def test_dtype_and_shape_come_from_the_initial_value(self, initial, dtype, shape):
        made = gs.Variable(initial)
        assert (made.dtype.name, made.shape.as_list()) == (dtype, shape)

    def test_dtype_converts_a_number_and_refuses_a_node(self):
        assert gs.Variable(1, dtype=gs.float64).dtype == gs.float64
        with pytest.raises(ValueError, match="conversion requested dtype float32 for Tensor with dtype int32"):
            gs.Variable(as_node(1), dtype=gs.float32)

    def test_callable_runs_outside_control_dependencies(self):
        before = as_node(1)
        with gs.control_dependencies([before]):
            made = gs.Variable(lambda: as_node(2.0), name="v")
        assert made.initial_value.name == "v/Initializer/Const:0"
        assert made.initial_value.control_inputs == ()
        assert made.initializer.control_inputs == ()

    def test_collections(self):
        trained, fixed = gs.Variable(0.0), gs.Variable(0.0, trainable=False)
        local = gs.Variable(0.0, trainable=False, collections=[GraphKeys.LOCAL_VARIABLES])
        assert gs.global_variables() == gs.all_variables() == [trained, fixed]
        assert gs.trainable_variables() == [trained]
        assert gs.local_variables() == [local]
        assert local.is_local
        assert not trained.is_local

    def test_needs_an_initial_value_of_known_shape(self):
        with pytest.raises(ValueError, match=r"initial_value must be specified\."):
            gs.Variable()
        with pytest.raises(ValueError, match="initial_value must have a shape specified"):
            gs.Variable(placeholder(gs.float32, [None]))

    def test_is_not_iterable(self):
        with pytest.raises(TypeError, match=r"'Variable' object is not iterable\."):
            iter(gs.Variable([1.0, 2.0]))

    def test_declaration_names_the_primary(self):
        w = gs.Variable([1.0, 2.0], name="w")
        slot = gs.Variable([0.0, 0.0], name="w/M", trainable=False, primary=w, optimizer="M", slot="momentum")
        decl = slot.declaration(shard=1)
        assert (decl.primary, decl.optimizer, decl.slot, decl.shard) == ("w", "M", "momentum", 1)
        assert (decl.dtype, decl.shape, decl.trainable, decl.is_step) == ("float32", (2,), False, False)


class TestAssigning:
    def test_assigns_give_the_new_value(self, session):
        w = gs.Variable([1.0, 2.0])
        session.run(w.initializer)
        np.testing.assert_array_equal(session.run(w.assign([3, 4])), [3, 4])
        np.testing.assert_array_equal(session.run(gs.assign_add(w, [1, 1])), [4, 5])
        np.testing.assert_array_equal(session.run(gs.assign_sub(w, [0, 5])), [4, 0])
        np.testing.assert_array_equal(w.eval(), [4, 0])

    def test_scatter_with_repeated_rows(self, session):
        w = gs.Variable(np.zeros((3, 2), np.float32))
        session.run(w.initializer)
        rows = IndexedSlices(as_node(np.ones((2, 2), np.float32)), as_node([1, 1]))
        np.testing.assert_array_equal(session.run(w.scatter_add(rows)), [[0, 0], [2, 2], [0, 0]])
        np.testing.assert_array_equal(session.run(w.scatter_sub(rows))[1], [0, 0])
        np.testing.assert_array_equal(session.run(gs.scatter_update(w, [2], 7.0))[2], [7, 7])

    def test_a_change_takes_what_another_gave_and_comes_after_it(self, session):
        w = gs.Variable([0.0, 0.0, 0.0])
        session.run(w.initializer)
        first = gs.scatter_sub(w, [0, 1], [1.0, 1.0])
        second = gs.scatter_sub(first, [1, 2], [2.0, 2.0])
        row, whole = session.run([gs.gather(second, [1]), second])
        assert (row.tolist(), whole.tolist()) == ([-3.0], [-1.0, -3.0, -2.0])
        assert session.run(gs.assign(gs.assign_add(w, [1.0, 1.0, 1.0]), [5.0, 5.0, 5.0])).tolist() == [5.0, 5.0, 5.0]
        assert session.run(w).tolist() == [5.0, 5.0, 5.0]
        step = gs.train.create_global_step()
        session.run(step.initializer)
        assert session.run(gs.assign_add(gs.assign_add(step, 1), 1)) == 2
        with pytest.raises(TypeError, match="AssignAdd changes a Variable; got"):
            gs.assign_add(gs.identity(w), [1.0, 1.0, 1.0])

    def test_scatter_out_of_range_changes_nothing(self, session):
        w = gs.Variable(np.zeros((3, 2), np.float32), name="w")
        session.run(w.initializer)
        with pytest.raises(InvalidArgumentError, match="'w'"):
            session.run(gs.scatter_add(w, [3], [[1.0, 1.0]]))
        assert not w.eval().any()

    def test_wrong_dtype_and_shape(self):
        w = gs.Variable([1.0, 2.0], name="w")
        with pytest.raises(TypeError, match="'value' of 'Assign' Op has type int32 that does not match type float32"):
            w.assign(as_node([1, 2]))
        with pytest.raises(ValueError, match="Shapes must be equal rank, but are 1 and 0"):
            w.assign_add(1.0)
        with pytest.raises(ValueError, match="Dimension 0 in both shapes must be equal, but are 2 and 3"):
            w.assign_sub([1.0, 2.0, 3.0])
        with pytest.raises(TypeError, match="Assign changes a Variable"):
            gs.assign(as_node(1.0), 2.0)
        with pytest.raises(TypeError, match="'indices' of 'ScatterAdd'"):
            gs.scatter_add(w, [0.5], [1.0])
        with pytest.raises(ValueError, match="'ScatterAdd'"):
            gs.scatter_add(w, [0, 1], [1.0])

    def test_a_variable_is_true_where_a_program_asks_whether_there_is_one(self):
        assert gs.Variable(0.0)

    @pytest.mark.parametrize("change", [gs.assign_add, gs.assign_sub])
    def test_nothing_is_added_to_a_bool(self, session, change):
        flags = gs.Variable([True, False], name="flags")
        with pytest.raises(TypeError, match="'ref' has DataType bool not in list of allowed values: float32, float64"):
            change(flags, [True, True])
        rows = gs.scatter_add if change is gs.assign_add else gs.scatter_sub
        with pytest.raises(TypeError, match="'ref' has DataType bool not in list"):
            rows(flags, [0], [True])
        session.run(flags.initializer)
        assert session.run(flags.assign([False, True])).tolist() == [False, True]

    def test_load(self, session):
        w = gs.Variable([1.0, 2.0])
        w.load([5, 6], session)
        np.testing.assert_array_equal(w.eval(), [5, 6])

    def test_load_without_session(self):
        with pytest.raises(ValueError, match="Either session argument should be provided"):
            gs.Variable(1.0).load(2.0)


class TestInitializing:
    def test_report_and_is_initialized(self, session):
        a, b = gs.Variable(1.0, name="a"), gs.Variable(2.0, name="b")
        report = gs.report_uninitialized_variables()
        has = gs.is_variable_initialized(a)
        check = gs.assert_variables_initialized()
        assert session.run(report).tolist() == [b"a", b"b"]
        session.run(a.initializer)
        assert session.run(report).tolist() == [b"b"]
        assert session.run(has)
        with pytest.raises(FailedPreconditionError, match="Attempting to use uninitialized value b"):
            session.run(check)
        session.run(gs.variables_initializer([b]))
        assert session.run(report).tolist() == []
        session.run(check)

    def test_reading_before_initializing(self, session):
        w = gs.Variable(1.0, name="w")
        with pytest.raises(FailedPreconditionError, match="Attempting to use uninitialized value w"):
            session.run(w)

    def test_initialized_value(self, session):
        draws = iter([1.0, 2.0, 3.0])
        drawn = Node("Draw", (), lambda: np.float32(next(draws)), dtype=gs.float32, shape=[], stateful=True)
        a = gs.Variable(drawn, name="a")
        b, c = gs.Variable(a.initialized_value(), name="b"), gs.Variable(2.0 * a)
        session.run(gs.global_variables_initializer())
        assert session.run([a, b, c]) == [1.0, 1.0, 2.0]
        session.run(a.assign(9.0))
        session.run([b.initializer, c.initializer])
        assert session.run([b, c]) == [9.0, 18.0]

    def test_an_initial_value_that_a_loop_computes_from_another_variable(self, session):
        w = gs.Variable(2.0)
        power = gs.Variable(gs.while_loop(lambda i, _: i < 3, lambda i, p: (i + 1, p * w), [0, 1.0])[1])
        session.run(gs.global_variables_initializer())
        assert session.run(power) == 8.0

    def test_assign_without_initializer(self, session):
        w = gs.Variable([1.0, 2.0])
        session.run(w.assign([3.0, 4.0]))
        np.testing.assert_array_equal(w.eval(), [3, 4])

    def test_shape_known_only_at_the_initializer(self, session):
        x = placeholder(gs.float32, [None])
        w = gs.Variable(x, validate_shape=False)
        assert w.shape.ndims is None
        session.run(w.initializer, {x: [1.0, 2.0, 3.0]})
        np.testing.assert_array_equal(w.eval(), [1, 2, 3])

    def test_large_uniform_initial_values_cross_as_one_number(self, session):
        pushed = []
        push = session.cluster.push
        session.cluster.push = lambda sent: (pushed.append(sent), push(sent))[1]
        ones = gs.Variable(np.ones((100, 10), np.float32))
        signs = gs.Variable(np.where(np.arange(100) % 2, 0.0, -0.0).astype(np.float32))
        session.run(gs.global_variables_initializer())
        assert [op.fill for op in pushed[0].ops] == [1.0, None]
        assert session.run(ones).sum() == 1000
        assert np.signbit(session.run(signs)).sum() == 50

    def test_local_variables_live_in_the_session(self):
        count = gs.Variable(1, trainable=False, collections=[GraphKeys.LOCAL_VARIABLES])
        with gs.Session() as one, gs.Session(cluster=one.cluster) as other:
            one.run(gs.local_variables_initializer())
            other.run(gs.local_variables_initializer())
            assert one.run(count.assign_add(5)) == 6
            assert other.run(count) == 1


def test_a_checkpoint_is_removed(tmp_path):
    gs.Variable(1.0)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        kept, removed = (gs.train.Saver().save(session, str(tmp_path / "model"), step) for step in (1, 2))
    gs.train.remove_checkpoint(removed)
    assert gs.train.checkpoint_exists(kept)
    assert not list(tmp_path.glob("model-2*"))
    assert list(tmp_path.glob("model-1*"))
