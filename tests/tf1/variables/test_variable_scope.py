import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.graph.graph import GraphKeys, Node, as_node


def _ones(shape, dtype=None, partition_info=None):
    return as_node(np.ones(shape, np.float32))


class TestGetVariable:
    def test_makes_once_and_then_refuses(self):
        made = gs.get_variable("w", [2, 3])
        assert (made.name, made.dtype, made.shape.as_list()) == ("w:0", gs.float32, [2, 3])
        assert made.initial_value.name.startswith("w/Initializer/")
        with pytest.raises(
            ValueError,
            match=r"^Variable w already exists, disallowed\. Did you mean to set reuse=True or "
            r"reuse=tf\.AUTO_REUSE in VarScope\?",
        ):
            gs.get_variable("w", [2, 3])

    def test_reuse_needs_it_to_exist(self):
        with (
            gs.variable_scope("a", reuse=True),
            pytest.raises(
                ValueError,
                match=r"^Variable a/w does not exist, or was not created with tf\.get_variable\(\)\. Did you "
                r"mean to set reuse=tf\.AUTO_REUSE in VarScope\?",
            ),
        ):
            gs.get_variable("w", [1])

    def test_auto_reuse(self):
        made = []
        for _ in range(2):
            with gs.variable_scope("a", reuse=gs.AUTO_REUSE):
                made.append(gs.get_variable("w", [1]))
        assert made[0] is made[1]

    def test_reuse_checks_shape_and_dtype(self):
        gs.get_variable("w", [2])
        gs.get_variable_scope().reuse_variables()
        assert gs.get_variable("w").name == "w:0"
        with pytest.raises(ValueError, match=r"share variable w, but specified shape \(3,\) and found shape \(2,\)"):
            gs.get_variable("w", [3])
        with pytest.raises(ValueError, match="specified dtype float64 and found dtype float32_ref"):
            gs.get_variable("w", [2], gs.float64)

    def test_initializers(self):
        class Class:
            def __call__(self, shape, dtype=None, partition_info=None):
                return as_node(np.full(shape, 2, dtype.as_numpy_dtype))

        asked = {
            "function": gs.get_variable("function", [2], initializer=_ones),
            "class": gs.get_variable("class", [2], initializer=Class),
            "shape_only": gs.get_variable("shape_only", [2], initializer=lambda shape: np.ones(shape, np.float32)),
            "number": gs.get_variable("number", initializer=3.0),
            "array": gs.get_variable("array", initializer=np.array([4, 5])),
            "node": gs.get_variable("node", initializer=as_node([6.0])),
            "int": gs.get_variable("int", [2], gs.int32),
        }
        with gs.Session() as sess:
            sess.run(gs.global_variables_initializer())
            found = {name: np.asarray(value).tolist() for name, value in sess.run(asked).items()}
        assert found == {
            "function": [1, 1],
            "class": [2, 2],
            "shape_only": [1, 1],
            "number": 3,
            "array": [4, 5],
            "node": [6],
            "int": [0, 0],
        }
        assert asked["array"].dtype == gs.int64

    def test_default_is_glorot_uniform(self):
        w = gs.get_variable("w", [100, 50])
        with gs.Session() as sess:
            sess.run(w.initializer)
            value = sess.run(w)
        limit = np.sqrt(6 / 150)
        assert 0.9 * limit < np.abs(value).max() <= limit

    def test_errors(self):
        with pytest.raises(ValueError, match=r"^Shape of a new variable \(a\) must be fully defined, but instead was"):
            gs.get_variable("a")
        with pytest.raises(ValueError, match="must be fully defined, but instead was"):
            gs.get_variable("a", [None, 2])
        with pytest.raises(ValueError, match="If initializer is a constant, do not specify shape"):
            gs.get_variable("a", [1], initializer=1.0)
        with pytest.raises(ValueError, match="An initializer for variable a of gs.string is required"):
            gs.get_variable("a", [1], gs.string)
        assert gs.global_variables() == []

    def test_regularizer(self):
        def double(variable):
            return variable * 2.0

        with gs.variable_scope("a", regularizer=double):
            gs.get_variable("w", [1])
            gs.get_variable("b", [1], regularizer=gs.no_regularizer)
        (loss,) = gs.get_collection(GraphKeys.REGULARIZATION_LOSSES)
        assert loss.name.startswith("a/w/Regularizer/")

    def test_local(self):
        made = gs.get_local_variable("count", initializer=0)
        assert gs.local_variables() == [made]
        assert gs.trainable_variables() == gs.global_variables() == []


class TestVariableScope:
    def test_names_nest(self):
        with gs.variable_scope("a"), gs.variable_scope("b") as inner:
            assert gs.get_variable("w", [1]).name == "a/b/w:0"
            assert Node("Thing", name="x").op_name == "a/b/x"
            assert inner.name == "a/b"
        assert gs.get_variable_scope().name == ""

    def test_entered_again_by_object_from_anywhere(self):
        with gs.variable_scope("a") as scope:
            first = gs.get_variable("w", [1])
        with gs.variable_scope("other"), gs.variable_scope(scope, reuse=True):
            assert gs.get_variable("w", [1]) is first
        assert scope.reuse is False

    def test_variables_keep_the_name_while_name_scopes_count(self):
        for name in ("w", "v"):
            with gs.variable_scope("a"):
                assert gs.get_variable(name, [1]).op_name == f"a/{name}"
        assert Node("Thing", name="a").op_name == "a_2"

    def test_default_names_are_made_unique(self):
        def layer():
            with gs.variable_scope(None, "dense"):
                return gs.get_variable("w", [1]).op_name

        assert [layer(), layer(), layer()] == ["dense/w", "dense_1/w", "dense_2/w"]
        with gs.variable_scope("net"):
            assert [layer(), layer()] == ["net/dense/w", "net/dense_1/w"]
        with gs.variable_scope("net", reuse=True):
            assert layer() == "net/dense/w"

    def test_defaults_are_inherited(self):
        with gs.variable_scope("a", initializer=_ones, dtype=gs.float32), gs.variable_scope("b") as scope:
            assert scope.initializer is _ones
            made = gs.get_variable("w", [2])
        with gs.Session() as sess:
            sess.run(made.initializer)
            assert sess.run(made).tolist() == [1, 1]

    def test_reuse_false_inherits(self):
        with gs.variable_scope("a", reuse=True), gs.variable_scope("b", reuse=False) as scope:
            assert scope.reuse is True

    def test_custom_getters_wrap_from_the_inside_out(self):
        seen = []

        def getter(label):
            def get(true_getter, name, *args, **kwargs):
                seen.append(label)
                return true_getter(f"{name}_{label}", *args, **kwargs)

            return get

        with gs.variable_scope("a", custom_getter=getter("outer")), gs.variable_scope("b", custom_getter=getter("in")):
            assert gs.get_variable("w", [1]).op_name == "a/b/w_in_outer"
        assert seen == ["in", "outer"]

    def test_without_any_name(self):
        with (
            pytest.raises(TypeError, match="If default_name is None then name_or_scope is required"),
            gs.variable_scope(None),
        ):
            pass
        with (
            pytest.raises(ValueError, match="reuse=True cannot be used without a name_or_scope"),
            gs.variable_scope(None, "a", reuse=True),
        ):
            pass

    def test_members(self):
        gs.get_variable("w", [1])
        with gs.variable_scope("a") as scope:
            inner = gs.get_variable("w", [1])
        assert scope.global_variables() == scope.trainable_variables() == [inner]
        assert scope.local_variables() == []


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(5, "int32"), (np.int64(5), "int64"), (True, "bool"), (2.5, "float32"), ([1, 2], "int32"),
     (np.float64(2), "float64"), ("a", "string")],
)  # fmt: skip
def test_a_variable_has_the_dtype_of_the_value_that_it_is_made_of(value, dtype):
    with gs.variable_scope("scope", dtype=gs.float64):
        assert gs.get_variable("v", initializer=value).dtype.name == dtype


def test_what_a_scope_goes_by_can_be_set_within_it():
    with gs.variable_scope("set") as scope:
        scope.set_dtype(gs.float64)
        scope.set_initializer(gs.ones_initializer())
        scope.set_caching_device(lambda op: op.device)
        scope.set_use_resource(True)
        with gs.variable_scope("within") as inner:
            assert (inner.use_resource, callable(inner.caching_device)) == (True, True)
            assert gs.get_variable("w", [2]).dtype == gs.float64


#: What a template of TensorFlow's gives, asked of its 2.21: attribute=names.
_OF_A_TEMPLATE = """
variables=abc weights=abc global_variables=ab local_variables=c trainable_variables=a trainable_weights=a
non_trainable_variables=b non_trainable_weights=b"""


def _variables_of_each_kind():
    return gs.get_variable("a", [2]), gs.get_variable("b", [2], trainable=False), gs.get_local_variable("c", [2])


class TestTemplates:
    def test_calls_share_variables_and_templates_do_not(self):
        def line(x, rate):
            return rate * x * gs.get_variable("w", [], initializer=gs.ones_initializer())

        first, second = (gs.make_template("line", line, rate=2.0) for _ in range(2))
        made = [first(3.0), first(4.0), second(5.0)]
        assert [one.name for one in gs.global_variables()] == ["line/w:0", "line_1/w:0"]
        assert first.variable_scope.trainable_variables() == gs.global_variables()[:1]
        with gs.Session() as session:
            session.run(gs.global_variables_initializer())
            assert session.run(made) == [6.0, 8.0, 10.0]
        taken = gs.make_template("other", line, True, "line", rate=1.0)
        with pytest.raises(ValueError, match="Variable line/w already exists"):
            taken(1.0)

    def test_a_template_says_what_it_has_made(self):
        template = gs.make_template("made", _variables_of_each_kind)
        assert (template.name, template.func, template.variable_scope_name) == ("made", _variables_of_each_kind, None)
        assert template.var_scope is None
        assert template.variables == []
        with gs.variable_scope("outer"):
            template()
        for name, _, made in (each.partition("=") for each in _OF_A_TEMPLATE.split()):
            assert [one.op.name[-1] for one in getattr(template, name)] == list(made)
        assert (template.var_scope, template.variable_scope_name) == (template.variable_scope, "outer/made/")

    def test_a_later_call_makes_nothing_to_train(self):
        template = gs.make_template("counts", lambda: gs.Variable(1.0))
        template()
        with pytest.raises(ValueError, match="Trainable variable created when calling a template after the first"):
            template()
        with pytest.raises(ValueError, match="name cannot be None"):
            gs.make_template(None, lambda: None)
