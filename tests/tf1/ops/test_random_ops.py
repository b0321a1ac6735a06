import numpy as np
import pytest
from evaluate import evaluate

from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.ops import array_ops
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops import init_ops as i
from globalstep.tf1.ops import random_ops as r
from globalstep.tf1.ops import sampling_ops as s
from globalstep.tf1.ops.nn_ops import dropout


def draws(build, seed=None, times=2):
    """Values of a node in a graph of its own, run after run."""
    with Graph().as_default() as graph:
        graph.seed = seed
        node = build()
        return [evaluate(node) for _ in range(times)]


def test_the_graph_seed_makes_programs_repeatable():
    first, second = draws(lambda: r.random_normal([4]), 1), draws(lambda: r.random_normal([4]), 1)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, draws(lambda: r.random_normal([4]), 2))


def test_the_operation_seed_makes_a_node_repeatable():
    np.testing.assert_array_equal(
        draws(lambda: r.random_uniform([4], seed=5)), draws(lambda: r.random_uniform([4], seed=5))
    )
    assert not np.array_equal(draws(lambda: r.random_uniform([4])), draws(lambda: r.random_uniform([4])))


def test_two_nodes_of_a_seeded_graph_differ():
    r.set_random_seed(1)
    first, second = r.random_normal([4]), r.random_normal([4])
    assert not np.array_equal(evaluate(first), evaluate(second))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distributions(dtype):
    normal = evaluate(r.random_normal([20000], 3.0, 2.0, dtype, seed=1))
    assert normal.dtype == dtype
    assert (normal.mean(), normal.std()) == pytest.approx((3, 2), abs=0.05)
    cut = evaluate(r.truncated_normal([20000], 1.0, 2.0, dtype, seed=1))
    assert cut.dtype == dtype
    assert np.abs(cut - 1).max() <= 4
    assert cut.std() == pytest.approx(2 * 0.8796, abs=0.03)
    even = evaluate(r.random_uniform([20000], -1, 3, dtype, seed=1))
    assert even.dtype == dtype
    assert -1 <= even.min() < -0.99 < 2.99 < even.max() < 3


def test_other_distributions():
    numbers = evaluate(r.random_uniform([1000], 2, 5, "int32", seed=1))
    assert set(numbers) == {2, 3, 4}
    with pytest.raises(ValueError, match="Must specify maxval for integer dtype int32"):
        r.random_uniform([2], dtype="int32")
    assert evaluate(r.random_gamma([5000], [2.0, 4.0], 2.0, seed=1)).mean(0) == pytest.approx([1, 2], abs=0.1)
    assert evaluate(r.random_poisson(3.0, [5000], seed=1)).mean() == pytest.approx(3, abs=0.1)
    assert r.categorical(np.zeros((3, 2)), 4, "int32").shape.as_list() == [3, 4]
    drawn = r.multinomial(np.log([[0.1, 0.9], [1.0, 1e-9]]), 2000, seed=1)
    assert drawn.shape.as_list() == [2, 2000]
    assert evaluate(drawn).mean(1) == pytest.approx([0.9, 0], abs=0.03)


def test_shuffle_keeps_the_rows():
    x = c.placeholder("int32", [None, 2])
    value = np.arange(20).reshape(10, 2)
    found = evaluate(r.random_shuffle(x, seed=1), {x: value})
    assert not np.array_equal(found, value)
    np.testing.assert_array_equal(np.sort(found, axis=0), value)


def test_shapes_from_nodes():
    x = c.placeholder("float32", [None, 3])
    node = r.random_normal([x.shape.as_list()[1], 2])
    assert node.shape.as_list() == [3, 2]
    assert evaluate(node).shape == (3, 2)
    rows = r.random_normal([array_ops.shape(x)[0], 2])
    assert rows.shape.as_list() == [None, 2]
    assert evaluate(rows, {x: np.zeros((5, 3))}).shape == (5, 2)


def test_dropout():
    x = c.ones([10000])
    for node in (dropout(x, 0.25, seed=1), dropout(x, rate=0.75, seed=1)):
        value = evaluate(node)
        assert set(np.unique(value)) == {0, 4}
        assert value.mean() == pytest.approx(1, abs=0.1)
        assert value.dtype == np.float32
    assert dropout(x, 1.0) is x
    p = c.placeholder("float32", [])
    assert evaluate(dropout(x, p), {p: 1}).mean() == 1
    rows = evaluate(dropout(c.ones([50, 4]), 0.5, noise_shape=[50, 1], seed=1))
    assert set(rows.sum(1)) == {0, 8}
    with pytest.raises(ValueError, match=r"range \(0, 1\], got 0"):
        dropout(x, 0.0)
    with pytest.raises(ValueError, match="provide a rate"):
        dropout(x)
    with pytest.raises(ValueError, match="floating point tensor"):
        dropout(c.ones([2], "int32"), 0.5)


@pytest.mark.parametrize(
    ("initializer", "low", "high", "deviation"),
    [
        (i.glorot_uniform_initializer(1), -np.sqrt(6 / 300), np.sqrt(6 / 300), np.sqrt(2 / 300)),
        (i.glorot_normal_initializer(1), -0.19, 0.19, np.sqrt(2 / 300)),
        (i.he_normal(1), -0.33, 0.33, np.sqrt(2 / 100)),
        (i.he_uniform(1), -np.sqrt(6 / 100), np.sqrt(6 / 100), np.sqrt(2 / 100)),
        (i.lecun_normal(1), -0.24, 0.24, 0.1),
        (i.uniform_unit_scaling_initializer(seed=1), -np.sqrt(3 / 100), np.sqrt(3 / 100), 0.1),
        (i.variance_scaling_initializer(3.0, "fan_out", "uniform", 1), -0.22, 0.22, np.sqrt(3 / 200)),
        (i.truncated_normal_initializer(stddev=0.1, seed=1), -0.2, 0.2, 0.088),
        (i.random_normal_initializer(stddev=0.1, seed=1), -0.5, 0.5, 0.1),
        (i.random_uniform_initializer(-0.5, 0.5, 1), -0.5, 0.5, 1 / np.sqrt(12)),
    ],
)
def test_random_initializers(initializer, low, high, deviation):
    node = initializer([100, 200], dtype="float64")
    value = evaluate(node)
    assert (value.dtype, value.shape) == (np.float64, (100, 200))
    assert low <= value.min() < value.max() <= high
    assert value.std() == pytest.approx(deviation, rel=0.03)
    assert value.mean() == pytest.approx(0, abs=deviation / 30)
    assert initializer([2, 3]).dtype.name == "float32"


def test_fixed_initializers():
    np.testing.assert_array_equal(evaluate(i.zeros_initializer()([2])), [0, 0])
    np.testing.assert_array_equal(evaluate(i.ones_initializer()([2], "int32")), [1, 1])
    np.testing.assert_array_equal(evaluate(i.constant_initializer(0.5)([2])), np.float32([0.5, 0.5]))
    np.testing.assert_array_equal(evaluate(i.constant_initializer([1, 2])([3])), [1, 2, 2])
    np.testing.assert_array_equal(evaluate(i.identity_initializer(2.0)([2, 2])), [[2, 0], [0, 2]])
    with pytest.raises(TypeError, match="Expected Tensor's shape"):
        i.constant_initializer([1, 2], verify_shape=True)([3])
    for shape in ([4, 3], [3, 4], [2, 2, 3]):
        q = evaluate(i.orthogonal_initializer(2.0, seed=1)(shape)).reshape(-1, shape[-1])
        q = q if q.shape[0] >= q.shape[1] else q.T
        np.testing.assert_allclose(q.T @ q, 4 * np.eye(q.shape[1]), atol=1e-5)
    with pytest.raises(ValueError, match="at least two-dimensional"):
        i.orthogonal_initializer()([3])
    with pytest.raises(TypeError, match="Expected floating point type"):
        i.random_normal_initializer(dtype="int32")
    with pytest.raises(ValueError, match="Invalid `mode`"):
        i.variance_scaling_initializer(mode="fan")


def test_candidate_samplers():
    for sampler in (s.log_uniform_candidate_sampler, s.uniform_candidate_sampler):
        ids, true, drawn = sampler([[0], [5]], 1, 20, True, 30, seed=1)
        values, expected, own = evaluate((ids, true, drawn))
        assert values.dtype == np.int64
        assert len(set(values)) == 20
        assert expected.shape == (2, 1)
        assert 0 < own.min() <= own.max() <= 1
        # The expected counts of all classes add up to the number of classes drawn, but for chance.
        everything = sampler(np.arange(30)[:, None], 1, 20, True, 30, seed=1)[1]
        assert np.mean([evaluate(everything).sum() for _ in range(200)]) == pytest.approx(20, abs=0.5)
    with pytest.raises(ValueError, match="range is too small"):
        s.log_uniform_candidate_sampler([[0]], 1, 20, True, 10)
    plain = evaluate(s.log_uniform_candidate_sampler([[0]], 1, 5000, False, 100, seed=1))
    assert np.mean(plain[0] == 0) == pytest.approx(np.log(2) / np.log(101), abs=0.02)
    assert plain[1][0, 0] == pytest.approx(5000 * np.log(2) / np.log(101), rel=1e-5)


def test_the_shape_of_draws_is_followed_by_that_of_their_parameter():
    assert r.random_gamma([5], [1.0, 2.0], beta=[[1.0], [2.0], [3.0]]).shape.as_list() == [5, 3, 2]
    assert r.random_poisson([1.0, 2.0], [5]).shape.as_list() == [5, 2]
