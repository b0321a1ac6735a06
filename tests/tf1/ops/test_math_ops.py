import subprocess
import sys

import numpy as np
import pytest
from evaluate import evaluate

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.graph.graph import Graph, Node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops import indexing_ops as ix
from globalstep.tf1.ops import linear_operators as lo
from globalstep.tf1.ops import math_ops as m
from globalstep.tf1.ops import partition_ops as pt
from globalstep.tf1.ops import product_ops as pr
from globalstep.tf1.ops import reduction_ops as r
from globalstep.tf1.ops import segment_ops as sg
from globalstep.tf1.ops.nn_ops import bias_add
from globalstep.tf1.text.string_ops import reduce_join

INTS = np.array([[7, -7, 3], [2, 0, -5]], np.int32)


@pytest.mark.parametrize(
    ("build", "expected", "dtype"),
    [
        (lambda x: x + 2, INTS + 2, "int32"),
        (lambda x: x / 2, INTS / 2, "float64"),
        (lambda x: x // 2, INTS // 2, "int32"),
        (lambda x: x % 3, INTS % 3, "int32"),
        (lambda x: m.div(x, 2), INTS // 2, "int32"),
        (lambda x: m.truncatediv(x, 2), np.trunc(INTS / 2), "int32"),
        (lambda x: m.truncatemod(x, 3), np.fmod(INTS, 3), "int32"),
        (lambda x: x > 2, INTS > 2, "bool"),
        (lambda x: x >= 2, INTS >= 2, "bool"),
        (lambda x: x < 2, INTS < 2, "bool"),
        (lambda x: m.equal(x, 2), INTS == 2, "bool"),
        (lambda x: m.not_equal(x, 2), INTS != 2, "bool"),
        (lambda x: (x > 2) & (x < 5), (INTS > 2) & (INTS < 5), "bool"),
        (lambda x: (x > 2) | ~(x < 5), (INTS > 2), "bool"),
        (lambda x: m.logical_xor(x > 2, x < 5), (INTS > 2) ^ (INTS < 5), "bool"),
        (m.round, INTS, "int32"),
        (m.to_float, INTS, "float32"),
        (m.to_double, INTS, "float64"),
        (m.to_int64, INTS, "int64"),
        (lambda x: m.saturate_cast(x * 100, "int8"), np.clip(INTS * 100, -128, 127), "int8"),
        (lambda x: m.cast(m.cast(x, "float32") / 2, "int32"), np.trunc(INTS / 2), "int32"),
        (r.argmax, INTS.argmax(0), "int64"),
        (lambda x: r.argmin(x, 1, output_type="int32"), INTS.argmin(1), "int32"),
        (r.count_nonzero, 5, "int64"),
        (lambda x: r.reduce_mean(x, 1), INTS.sum(1) // 3, "int32"),
        (lambda x: r.reduce_all(x > -8), True, "bool"),
        (lambda x: r.reduce_any(x > 6, axis=1), [True, False], "bool"),
        (lambda x: r.bincount(m.abs(x)), np.bincount(np.abs(INTS).reshape(-1)), "int32"),
        (lambda x: r.bincount([], [], minlength=2), np.zeros(2), "float32"),
        (lambda x: r.bincount([1, 5], maxlength=3), [0, 1, 0], "int32"),
        (lambda x: m.is_nan(m.to_float(x)), INTS != INTS, "bool"),
        (lambda x: ix.where(x > 0), np.argwhere(INTS > 0), "int64"),
        (lambda x: ix.one_hot(x, 4), (INTS[..., None] == np.arange(4)), "float32"),
        (lambda x: pt.sequence_mask(x, 4), np.arange(4) < INTS[..., None], "bool"),
        (lambda x: pt.unique(x[0])[0], [7, -7, 3], "int32"),
        (lambda x: pt.invert_permutation([2, 0, 1]) + 0 * x[0], [1, 2, 0], "int32"),
    ],
)
def test_integers_and_truth_values(build, expected, dtype):
    x = c.placeholder("int32", [2, 3])
    node = build(x)
    value = evaluate(node, {x: INTS})
    np.testing.assert_array_equal(value, expected)
    assert value.dtype == dtype
    assert node.dtype.name == dtype
    assert node.shape.is_compatible_with(np.shape(expected))


def test_two_nodes_of_different_dtypes_are_an_error_that_names_both():
    x, y = c.placeholder("float32"), c.placeholder("int32")
    with pytest.raises(TypeError, match="type int32 that does not match type float32 of argument 'x'"):
        m.add(x, y)
    with pytest.raises(TypeError, match="'Mul' Op has type float32"):
        y * 0.5
    with pytest.raises(TypeError, match="MatMul"):
        pr.matmul(x, y)


def test_numbers_and_arrays_take_the_dtype_of_the_node_beside_them():
    x = c.placeholder("float64", [2])
    for node in (x + 1, 1 / x, x * np.float32(2), np.ones(2, np.float32) - x, m.multiply(2, x), x**2):
        assert node.dtype.name == "float64"


def test_floating_functions_refuse_integers():
    with pytest.raises(TypeError, match="'x' of 'Sqrt' has DataType int32 not in list of allowed values"):
        m.sqrt(4)


@pytest.mark.parametrize("build", [m.add, m.multiply, m.maximum, m.less])
def test_shapes_that_do_not_broadcast_are_found_when_the_graph_is_built(build):
    with pytest.raises(ValueError, match="Dimensions must be equal, but are 3 and 4"):
        build(c.placeholder("float32", [2, 3]), c.placeholder("float32", [None, 4]))


def test_matmul_checks_shapes_when_the_graph_is_built():
    x = c.placeholder("float32", [None, 3])
    with pytest.raises(ValueError, match="Dimensions must be equal, but are 3 and 4"):
        pr.matmul(x, c.zeros([4, 2]))
    with pytest.raises(ValueError, match="Shape must be rank 2 but is rank 1"):
        pr.matmul(x, c.zeros([3]))
    with pytest.raises(ValueError, match="transpose and adjoint"):
        pr.matmul(x, x, transpose_b=True, adjoint_b=True)
    assert pr.matmul(x, x, transpose_b=True).shape.as_list() == [None, None]


def test_reductions_check_their_axes():
    with pytest.raises(ValueError, match="Invalid reduction dimension 2 for input with 2 dimensions"):
        r.reduce_sum(c.zeros([2, 3]), 2)
    with pytest.raises(ValueError, match="Cannot specify both"):
        r.reduce_sum(c.zeros([2, 3]), 0, reduction_indices=1)


@pytest.mark.parametrize("reduce", [r.reduce_sum, r.reduce_max, reduce_join])
@pytest.mark.parametrize("axis", [2, -3])
def test_axes_of_what_has_no_known_rank_are_checked_in_the_run(reduce, axis):
    x = c.placeholder("string" if reduce is reduce_join else "float32")
    fed = np.full((2, 3), b"a" if reduce is reduce_join else 1)
    with pytest.raises(InvalidArgumentError, match=f"Invalid reduction dimension {axis} for input with 2 dimensions"):
        evaluate(reduce(x, axis), {x: fed})
    if reduce is reduce_join:
        with pytest.raises(InvalidArgumentError, match="Duplicate reduction dimension"):
            evaluate(reduce(x, [1, -1]), {x: fed})


def test_what_is_known_in_the_run_is_checked_there():
    x, truth = c.placeholder("float32"), c.placeholder("bool")
    chosen = ix.where(truth, x, -x)
    slope = gradients(chosen, x)[0]
    fed = {x: np.array([[1, 2], [3, 4]], np.float32), truth: np.array([True, False])}
    np.testing.assert_array_equal(evaluate(chosen, fed), [[1, 2], [-3, -4]])
    np.testing.assert_array_equal(evaluate(slope, fed), [[1, 1], [-1, -1]])
    with pytest.raises(InvalidArgumentError, match="Inputs to Select must have the same size and shape"):
        evaluate(chosen, {**fed, truth: np.array([[True], [False]])})
    for bias in ([1], [1, 2, 3]):
        with pytest.raises(InvalidArgumentError, match="Must provide as many biases as channels"):
            evaluate(bias_add(x, np.array(bias, np.float32)), fed)
    with pytest.raises(TypeError, match="Expected int32, got 5.5 of type 'float'"):
        c.constant(5.5, "int32")


def test_norms_that_are_none_are_refused():
    for ord, axis, error in (
        ("fro", 1, "vector norm"),
        (3, [0, 1], "matrix norm"),
        (2, [0, 0], "unique"),
        (-1, 0, "vec"),
    ):
        with pytest.raises(ValueError, match=error):
            r.norm(c.zeros([2, 3]), ord, axis)
    assert evaluate(r.norm(c.constant([[3.0, 0.0], [0.0, 1.0]]), 2, [0, 1])) == 3


def test_reductions_of_nothing():
    empty = c.zeros([0, 2])
    np.testing.assert_array_equal(evaluate(r.reduce_sum(empty, 0)), [0, 0])
    assert np.isnan(evaluate(r.reduce_mean(empty)))
    np.testing.assert_array_equal(evaluate(r.reduce_sum(c.constant(3.0), [])), 3)


def test_reduce_logsumexp_neither_overflows_nor_fails_on_infinity():
    assert evaluate(r.reduce_logsumexp(c.constant([1000.0, 1000.0]))) == pytest.approx(1000 + np.log(2))
    assert evaluate(r.reduce_logsumexp(c.constant([-np.inf, -np.inf]))) == -np.inf


def test_add_n():
    with pytest.raises(ValueError, match="at least one"):
        m.add_n([])
    with pytest.raises(ValueError, match="Shapes must be equal"):
        m.add_n([c.zeros([2]), c.zeros([3])])
    with pytest.raises(TypeError, match="don't all match"):
        m.add_n([c.zeros([2]), c.zeros([2], "int32")])
    slices = IndexedSlices(c.ones([2, 1]), c.constant([1, 1]), (3, 1))
    np.testing.assert_array_equal(evaluate(m.add_n([slices, c.ones([3, 1])])), [[1], [3], [1]])
    x = c.placeholder("float32")
    with pytest.raises(InvalidArgumentError, match=r"must have the same size and shape, not \[\(2,\), \(\)\]"):
        evaluate(m.add_n([c.zeros([2]), x]), {x: 3.0})


def test_equality_of_nodes_is_identity():
    x = c.constant(1.0)
    assert x == x
    assert x != c.constant(1.0)
    with pytest.raises(TypeError, match="bool"):
        bool(x < 2.0)


def test_names_and_types_are_those_of_tensorflow():
    x = c.placeholder("float32", [2], name="x")
    assert [(n.op.type, n.name) for n in (x + 1.0, x - 1.0, x * 2.0, x / 2.0, -x, x[0], m.add(x, x))] == [
        ("Add", "add:0"),
        ("Sub", "sub:0"),
        ("Mul", "mul:0"),
        ("RealDiv", "truediv:0"),
        ("Neg", "Neg:0"),
        ("StridedSlice", "strided_slice:0"),
        ("Add", "Add_1:0"),
    ]


def test_segments_check_their_ids():
    with pytest.raises(InvalidArgumentError, match="not increasing"):
        evaluate(sg.segment_sum(c.ones([3]), [0, 2, 1]))
    with pytest.raises(InvalidArgumentError, match="not in"):
        evaluate(sg.unsorted_segment_sum(c.ones([3]), [0, 2, 1], 2))


def test_an_operator_works_as_the_first_thing_that_is_imported():
    code = (
        "from globalstep.tf1.graph.graph import as_node\n"
        "node = 2.0 * as_node(3.0)\nprint(node.op_type, (-node)[()].op_type)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Mul StridedSlice\n"


def test_functions_are_documented():
    for module in (m, r, c, ix, pr):
        for name in module.__all__:
            function = getattr(module, name)
            assert function.__doc__, name
            assert function.__doc__[0].isupper(), name


def test_random_choice_between_equal_extremes_follows_tensorflow():
    x, y = c.placeholder("float32", [2]), c.placeholder("float32", [2])
    both = gradients(m.maximum(x, y), [x, y]) + gradients(m.minimum(x, y), [x, y])
    found = evaluate(both, {x: [1, 2], y: [1, 3]})
    np.testing.assert_array_equal(found, [[1, 0], [0, 1], [1, 1], [0, 0]])
    (shared,) = gradients(r.reduce_max(x), [x])
    np.testing.assert_array_equal(evaluate(shared, {x: [4, 4]}), [0.5, 0.5])


def test_products_with_zeros_have_a_gradient():
    x = c.placeholder("float64", [4])
    (slope,) = gradients(r.reduce_prod(x), [x])
    np.testing.assert_array_equal(evaluate(slope, {x: [2, 0, 3, 5]}), [0, 30, 0, 0])
    np.testing.assert_array_equal(evaluate(slope, {x: [2, 0, 0, 5]}), [0, 0, 0, 0])


def test_powers_of_negative_numbers_have_a_gradient():
    x, y = c.placeholder("float64", [2]), c.placeholder("float64", [2])
    found = evaluate(gradients(x**y, [x, y]), {x: [-2, 0], y: [3, 2]})
    np.testing.assert_array_equal(found, [[12, 0], [0, 0]])


def test_large_values_neither_overflow_nor_lose_their_gradient():
    x = c.placeholder("float32", [2])
    for function, slopes in ((m.sigmoid, [0, 0]), (m.tanh, [0, 0]), (m.log_sigmoid, [1, 0])):
        np.testing.assert_array_equal(evaluate(gradients(function(x), x)[0], {x: [-1000, 1000]}), slopes)


def test_nodes_of_other_graphs_are_refused():
    with Graph().as_default():
        other = c.constant(1.0)
    with pytest.raises(ValueError, match="not an element of this graph"):
        m.add(other, c.constant(1.0))


def test_a_node_is_iterable_where_its_rows_are_known():
    rows = list(c.constant([[1.0, 2.0], [3.0, 4.0]]))
    assert all(isinstance(row, Node) for row in rows)
    np.testing.assert_array_equal(evaluate(rows[1]), [3, 4])
    with pytest.raises(TypeError, match="not iterable"):
        list(c.placeholder("float32", [None]))


@pytest.mark.parametrize(
    ("values", "dtype", "mean"),
    [
        ([2**31 - 1, 2**31 - 1, 2**31 - 2], "int32", 2**31 - 2),
        ([-(2**31), -(2**31)], "int32", -(2**31)),
        ([120, 121, 122], "int8", 121),
        ([250, 252], "uint8", 251),
        ([-7, 2], "int32", -2),
    ],
)
def test_the_mean_of_integers_does_not_overflow_and_rounds_towards_0(values, dtype, mean):
    # The numbers are TensorFlow 2.21's.
    found = evaluate(r.reduce_mean(c.constant(np.array(values, dtype))))
    assert (found, found.dtype) == (mean, dtype)


def test_linear_operators():
    matrix, x = np.array([[2.0, 7.0], [3.0, 4.0]], "f"), np.array([[1.0], [2.0]], "f")
    for made, dense in (
        (lo.LinearOperatorLowerTriangular(matrix, name="mask"), np.tril(matrix)),
        (lo.LinearOperatorFullMatrix(matrix, is_square=True), matrix),
        (lo.LinearOperatorDiag([2.0, 4.0]), np.diag([2.0, 4.0])),
    ):
        assert (made.shape, made.batch_shape) == ([2, 2], [])
        assert made.domain_dimension == made.range_dimension == 2
        for found, expected in (
            (made.to_dense(), dense),
            (made.matmul(x), dense @ x),
            (made.matvec(x[:, 0], adjoint=True), dense.T @ x[:, 0]),
            (made.solve(x), np.linalg.solve(dense, x)),
            (made.solvevec(x[:, 0]), np.linalg.solve(dense, x[:, 0])),
            (made.diag_part(), np.diag(dense)),
            (made.trace(), np.trace(dense)),
            (made.log_abs_determinant(), np.log(abs(np.linalg.det(dense)))),
            (made.add_to_tensor(matrix), dense + matrix),
            (made.shape_tensor(), [2, 2]),
        ):
            np.testing.assert_allclose(evaluate(found), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        lo.LinearOperatorFullMatrix([1.0])
