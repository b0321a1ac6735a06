import numpy as np
import pytest
from evaluate import evaluate

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.ops import array_ops as a
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops import indexing_ops as ix
from globalstep.tf1.ops import joining_ops as j
from globalstep.tf1.ops.reduction_ops import reduce_sum


def test_constants_have_the_default_dtypes_of_tensorflow():
    assert c.constant(1).dtype.name == "int32"
    assert c.constant(1.5).dtype.name == "float32"
    assert c.constant([1, 2.5]).dtype.name == "float32"
    assert c.constant(np.ones(2)).dtype.name == "float64"
    assert c.constant("text").dtype.name == "string"
    assert c.constant(2**40).dtype.name == "int64"
    assert c.constant(True).dtype.name == "bool"
    assert c.constant([1, 2], "float32").dtype.name == "float32"


def test_a_constant_fills_its_shape_with_the_last_value():
    np.testing.assert_array_equal(evaluate(c.constant(-1.0, shape=[2, 3])), np.full((2, 3), -1))
    np.testing.assert_array_equal(evaluate(c.constant([1, 2], shape=[2, 2])), [[1, 2], [2, 2]])
    with pytest.raises(ValueError, match="Too many elements"):
        c.constant([1, 2, 3], shape=[2])
    with pytest.raises(TypeError, match="Expected Tensor's shape"):
        c.constant([1, 2], shape=[2, 2], verify_shape=True)


def test_filled_arrays_take_no_room_before_a_run():
    node = c.zeros([1_000_000, 1_000_000])
    assert node.shape.as_list() == [1_000_000, 1_000_000]
    assert node.attrs["fill"] == 0
    np.testing.assert_array_equal(evaluate(c.ones([2], "int64")), [1, 1])
    np.testing.assert_array_equal(evaluate(c.fill([2, 1], 7)), [[7], [7]])
    np.testing.assert_array_equal(evaluate(c.zeros([2], "bool")), [False, False])


def test_filling_with_a_node_has_a_gradient():
    x = c.placeholder("float32", [])
    node = c.fill([2, 3], x)
    np.testing.assert_array_equal(evaluate([node[0, 0], gradients(node, x)[0]], {x: 2.5}), [2.5, 6])


def test_sizes_that_are_fed_in_place_of_a_constant():
    x, sizes = c.placeholder("float32", []), c.constant([2, 3])
    node = c.fill(sizes, x)
    assert evaluate(node, {x: 2.5}).tolist() == [[2.5] * 3] * 2
    assert evaluate(node, {x: 2.5, sizes: [4]}).tolist() == [2.5] * 4


def test_like_another_value():
    x = c.placeholder("float64", [None, 2])
    value = np.ones((3, 2))
    found = evaluate([c.zeros_like(x), c.ones_like(x, "int32")], {x: value})
    np.testing.assert_array_equal(found, [np.zeros((3, 2)), np.ones((3, 2))])
    assert [v.dtype for v in found] == ["float64", "int32"]


@pytest.mark.parametrize(
    ("node", "expected", "dtype"),
    [
        (lambda: c.range(5), [0, 1, 2, 3, 4], "int32"),
        (lambda: c.range(3, 18, 3), [3, 6, 9, 12, 15], "int32"),
        (lambda: c.range(3, 1, -0.5), [3, 2.5, 2, 1.5], "float32"),
        (lambda: c.range(c.constant(3)), [0, 1, 2], "int32"),
        (lambda: c.range(2, dtype="float32"), [0, 1], "float32"),
        (lambda: c.linspace(10.0, 12.0, 3), [10, 11, 12], "float32"),
        (lambda: c.eye(2), [[1, 0], [0, 1]], "float32"),
    ],
)
def test_sequences(node, expected, dtype):
    made = node()
    assert made.shape.as_list() == list(np.shape(expected))
    value = evaluate(made)
    np.testing.assert_allclose(value, expected)
    assert value.dtype == dtype == made.dtype.name


def test_placeholder_with_default():
    x = c.placeholder_with_default(np.float32(2), [])
    node = x * 3.0
    assert evaluate(node) == 6
    assert evaluate(node, {x: 5}) == 15
    with pytest.raises(ValueError, match="does not fit"):
        c.placeholder_with_default(c.zeros([2]), [3])


def test_convert_to_tensor():
    x = c.constant(1.0)
    assert c.convert_to_tensor(x) is x
    assert c.convert_to_tensor(1, preferred_dtype="float64").dtype.name == "float64"
    assert c.convert_to_tensor(1.5, dtype_hint="int32").dtype.name == "float32"
    with pytest.raises(ValueError, match="requested dtype int32 for Tensor with dtype float32"):
        c.convert_to_tensor(x, "int32")


def test_shapes_of_values():
    x = c.placeholder("float32", [None, 3])
    value = np.zeros((4, 3))
    shape, size, rank = evaluate([a.shape(x), a.size(x), a.rank(x)], {x: value})
    np.testing.assert_array_equal(shape, [4, 3])
    assert (size, rank) == (12, 2)
    assert a.shape(x, out_type="int64").dtype.name == "int64"


def test_reshape_tells_what_does_not_fit():
    with pytest.raises(ValueError, match="Cannot reshape a tensor with 6 elements"):
        a.reshape(c.zeros([2, 3]), [4, 2])
    x = c.placeholder("float32", [None])
    with pytest.raises(InvalidArgumentError, match="5 values .* requested shape is \\(2, 2\\)"):
        evaluate(a.reshape(x, [2, 2]), {x: np.zeros(5)})
    assert a.reshape(c.zeros([2, 3]), [-1, 2]).shape.as_list() == [3, 2]
    assert a.reshape(x, [a.shape(x)[0], 1]).shape.as_list() == [None, 1]


def test_axes_are_checked_when_the_graph_is_built():
    x = c.zeros([2, 3])
    for text, call in (
        ("not in the interval", lambda: a.expand_dims(x, 4)),
        ("Can not squeeze dim", lambda: a.squeeze(x, [1])),
        ("evenly divisible by 2 but is 3", lambda: j.split(x, 2, 1)),
        ("do not add up", lambda: j.split(x, [1, 1], 1)),
        ("should be equal to num_outputs: 2 is not 3", lambda: j.split(x, [1, 2], 1, num=3)),
        ("ConcatV2", lambda: j.concat([x, c.zeros([2, 4])], 0)),
        ("Shapes must be equal", lambda: j.stack([x, c.zeros([2, 4])])),
        (r"axis = -3 not in \[-2, 2\)", lambda: j.stack([[1], [2]], -3)),
        ("Cannot infer num", lambda: j.unstack(c.placeholder("float32", [None, 2]))),
        ("out of bounds", lambda: x[2]),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_arguments_made_of_ranks_and_static_shapes():
    x = c.placeholder("float32", [None, 2, 3])
    rank = a.rank(x)
    turned = a.transpose(x, j.concat([[1, 0], c.range(2, rank)], 0))
    assert turned.shape.as_list() == [2, None, 3]
    given = np.arange(12.0).reshape(2, 2, 3)
    np.testing.assert_array_equal(evaluate(turned, {x: given}), given.transpose(1, 0, 2))
    np.testing.assert_array_equal(evaluate(reduce_sum(x, rank - 1), {x: given}), given.sum(2))
    with pytest.raises(ValueError, match="known when the graph is built"):
        reduce_sum(x, a.shape(x)[0])


def test_parts_of_many_dimensions_of_unknown_size():
    x = c.placeholder("float32", [None, None, None, None, 36])
    for part, shape in (
        (x[:, :, 0], [None, None, None, 36]),
        (x[..., 4:6], [None, None, None, None, 2]),
        (x[0, ..., None, 1], [None, None, None, 1]),
        (x[:, 3:7, -1], [None, 4, None, 36]),
    ):
        assert part.shape.as_list() == shape
    with pytest.raises(ValueError, match="out of bounds"):
        x[0, 0, 0, 0, 36]
    with pytest.raises(ValueError, match="6 indices of 5 dimensions"):
        x[0, 0, 0, 0, 0, 0]


def test_eye_of_sizes_that_the_run_knows():
    x = c.placeholder("float32", [None, 3])
    rows, columns = a.shape(x)[0], a.shape(x)[1]
    for made, known, expected in (
        (c.eye(rows), [None, None], np.eye(2)),
        (c.eye(rows, columns, dtype="int32"), [None, 3], np.eye(2, 3)),
        (c.eye(columns, batch_shape=[rows, 1]), [None, 1, 3, 3], np.broadcast_to(np.eye(3), (2, 1, 3, 3))),
    ):
        assert made.shape.as_list() == known
        np.testing.assert_array_equal(evaluate(made, {x: np.zeros((2, 3))}), expected)


def test_lists_of_nodes_become_one_value():
    x = c.placeholder("float32", [])
    node = a.identity([[x, 1.0], [2.0, x]])
    np.testing.assert_array_equal(evaluate(node, {x: 5}), [[5, 1], [2, 5]])
    # Else what is plain takes the dtype of the nodes beside it: sizes of which one is of int64.
    assert evaluate(c.zeros([a.shape(np.ones(4), out_type="int64")[0], 2])).shape == (4, 2)
    as_integers = c.convert_to_tensor([[x, 1], [2, x]], "int64")
    assert as_integers.dtype.name == "int64"
    np.testing.assert_array_equal(evaluate(as_integers, {x: 5}), [[5, 1], [2, 5]])


def test_verify_tensor_all_finite_fails_the_run():
    x = c.placeholder("float32", [2])
    for verified in (a.verify_tensor_all_finite(x, "bad x"), a.verify_tensor_all_finite(x=x, message="bad x")):
        assert verified.shape == [2]
        assert evaluate(verified, {x: [1, 2]}).tolist() == [1, 2]
        with pytest.raises(InvalidArgumentError, match="bad x : Tensor had Inf values"):
            evaluate(verified, {x: [1, np.inf]})
    with pytest.raises(ValueError, match="takes a tensor"):
        a.verify_tensor_all_finite(x, "bad", x=x)
    with pytest.raises(ValueError, match="and a message"):
        a.verify_tensor_all_finite(x)


def test_check_numerics_fails_the_run():
    x = c.placeholder("float32", [2])
    with pytest.raises(InvalidArgumentError, match="bad : Tensor had NaN values"):
        evaluate(a.check_numerics(x, "bad"), {x: [1, np.nan]})


@pytest.mark.parametrize(
    "index", [0, -1, slice(1, None), slice(None, None, -1), (slice(None), 1), (Ellipsis, 0), (None, 1), (0, 1)]
)
def test_slices_are_numpys(index):
    x = c.placeholder("float32", [None, 3])
    value = np.arange(12.0).reshape(4, 3)
    node = x[index]
    found = evaluate(node, {x: value})
    np.testing.assert_array_equal(found, value[index])
    assert node.shape.is_compatible_with(found.shape)


def test_slices_by_nodes():
    x, i = c.placeholder("float32", [4]), c.placeholder("int32", [])
    feeds = {x: [0, 1, 2, 3], i: 2}
    assert evaluate(x[i], feeds) == 2
    np.testing.assert_array_equal(evaluate(x[i:], feeds), [2, 3])
    np.testing.assert_array_equal(evaluate(x[x > 1.5], feeds), [2, 3])


def test_gather_refuses_indices_out_of_range():
    x = c.placeholder("float32", [3, 2])
    for ids in ([0, 3], [-1]):
        with pytest.raises(InvalidArgumentError, match=r"indices\[\d\] = -?\d is not in \[0, 3\)"):
            evaluate(ix.gather(x, ids), {x: np.zeros((3, 2))})
    with pytest.raises(TypeError, match="'indices' has DataType float32"):
        ix.gather(x, [0.5])
    assert evaluate(ix.gather(x, np.zeros((0,), np.int32)), {x: np.zeros((3, 2))}).shape == (0, 2)


def test_one_hot():
    node = ix.one_hot([1, -1, 2], 3, on_value=5.0, off_value=-1.0, axis=0)
    assert node.shape.as_list() == [3, 3]
    np.testing.assert_array_equal(evaluate(node), [[-1, -1, -1], [5, -1, -1], [-1, -1, 5]])
    with pytest.raises(TypeError, match="does not match dtype parameter"):
        ix.one_hot([1], 3, on_value=c.constant(1.0), dtype="int32")


def test_where_needs_both_or_none():
    with pytest.raises(ValueError, match="both be non-None or both be None"):
        ix.where([True], c.zeros([1]))


def test_slice_checks_its_bounds():
    x = c.placeholder("float32", [None])
    with pytest.raises(InvalidArgumentError, match="Expected begin and size"):
        evaluate(ix.slice(x, [1], [4]), {x: np.zeros(3)})


def test_paddings_of_which_a_run_knows_some():
    x = c.placeholder("float32", [None, 2, 3])
    padded = j.pad(x, [[0, 0], [1, 5 - a.shape(x)[1]], [0, 0]], constant_values=7)
    assert padded.shape.as_list() == [None, None, 3]
    value = np.ones((2, 2, 3), np.float32)
    expected = np.pad(value, [(0, 0), (1, 3), (0, 0)], constant_values=7)
    np.testing.assert_array_equal(evaluate(padded, {x: value}), expected)
    (gradient,) = gradients(reduce_sum(padded * 2.0), [x])
    np.testing.assert_array_equal(evaluate(gradient, {x: value}), 2 * value)
    whole = c.placeholder("int32", [3, 2])
    mirrored = j.pad(x, whole, "REFLECT")
    np.testing.assert_array_equal(evaluate(mirrored, {x: value, whole: [[0, 0], [1, 0], [0, 0]]}), np.ones((2, 3, 3)))
    assert mirrored.shape.as_list() == [None, None, None]
