import numpy as np
import pytest
from evaluate import evaluate

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.graph.graph import control_dependencies
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops import control_flow_ops as cf
from globalstep.tf1.ops.array_ops import identity


def counted(log, name):
    return cf.py_func(lambda: log.append(name) or np.float32(1), [], "float32")


def test_group_runs_all_and_gives_nothing():
    log = []
    node = cf.group(counted(log, "a"), [counted(log, "b")], name="both")
    assert node.is_operation
    assert node.name == "both"
    assert evaluate(node) is None
    assert sorted(log) == ["a", "b"]
    with pytest.raises(TypeError, match="Expected tensor or operation"):
        cf.group(None)
    with pytest.raises(ValueError, match="Unknown keyword"):
        cf.group(wrong=1)


def test_tuple_waits_for_all():
    log = []
    x = counted(log, "x")
    slices = IndexedSlices(c.ones([1, 2]), c.constant([0]), (3, 2))
    found = cf.tuple([c.constant(2.0), None, slices], control_inputs=[x])
    assert found[1] is None
    assert isinstance(found[2], IndexedSlices)
    assert evaluate(found[0]) == 2
    assert log == ["x"]
    with pytest.raises(ValueError, match="at least one"):
        cf.tuple([None])


def test_control_dependencies_run_first():
    log = []
    with control_dependencies([counted(log, "first")]):
        node = identity(2.0)
    assert evaluate(node) == 2
    assert log == ["first"]


def test_print_writes_and_passes_the_gradient_on(capsys):
    x = c.placeholder("float32", [4])
    node = cf.Print(x, [x, "end"], message="x is ", first_n=1)
    slope = gradients(node * node, x)[0]
    np.testing.assert_array_equal(evaluate(slope, {x: [1, 2, 3, 4]}), [2, 4, 6, 8])
    evaluate(node, {x: [1, 2, 3, 4]})
    assert capsys.readouterr().err == "x is [1.0 2.0 3.0...][end]\n"


def test_assert_fails_the_run():
    x = c.placeholder("float32", [2])
    check = cf.Assert(x > 0.0, ["x must be positive", x])
    assert evaluate(check, {x: [1, 2]}) is None
    with pytest.raises(InvalidArgumentError, match=r"assertion failed: \[x must be positive\] \[1.0 -2.0\]"):
        evaluate(check, {x: [1, -2]})
    with pytest.raises(InvalidArgumentError, match=r"x == y did not hold element-wise:\] \[x \(Placeholder:0\) = \]"):
        evaluate(cf.assert_equal(x, 1.0), {x: [1, 2]})
    evaluate(cf.assert_positive(x), {x: [1, 2]})


def test_py_func():
    x, seen = c.placeholder("float32", [2]), []
    node = cf.py_func(lambda v: v.sum(), [x], "float64")
    assert evaluate(node, {x: [1, 2]}) == 3
    assert node.dtype.name == "float64"
    first, second = cf.py_func(lambda v: (v + 1, 7), [x], ["float32", "int64"])
    np.testing.assert_array_equal(evaluate(first, {x: [1, 2]}), [2, 3])
    assert evaluate(second, {x: [1, 2]}).dtype == np.int64
    evaluate(cf.py_func(seen.append, [x], []), {x: [1, 2]})
    assert len(seen) == 1
    with pytest.raises(InvalidArgumentError, match="returned 2 values, but expects to see 1"):
        evaluate(cf.py_func(lambda v: (v, v), [x], ["float32"]), {x: [1, 2]})


def test_py_func_has_no_gradient():
    x = c.placeholder("float32", [2])
    node = cf.py_func(lambda v: v, [x], "float32", name="mine")
    with pytest.raises(LookupError, match=r"No gradient defined for operation 'mine' \(op type: PyFunc\)"):
        gradients(node * 2.0, x)
    with pytest.raises(LookupError, match="PyFunc"):
        gradients(cf.py_func(lambda v: (v,), [x], ["float32"])[0], x)


def test_no_op():
    assert cf.no_op().is_operation
