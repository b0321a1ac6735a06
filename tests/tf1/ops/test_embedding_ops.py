import numpy as np
import pytest
from evaluate import evaluate

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops.embedding_ops import embedding_lookup, embedding_lookup_sparse
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.tf1.ops.sampling_ops import nce_loss, sampled_softmax_loss
from globalstep.tf1.variables.variables import Variable

TABLE = np.arange(12.0, dtype=np.float32).reshape(6, 2) + 1


def test_ids_out_of_range_are_refused():
    tables = [c.constant(TABLE[0::2]), c.constant(TABLE[1::2])]
    for wrong in (6, -1):
        with pytest.raises(InvalidArgumentError):
            evaluate(embedding_lookup(tables, [0, wrong]))


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="Need at least one param"):
        embedding_lookup([], [0])
    with pytest.raises(ValueError, match="Unrecognized partition strategy: any"):
        embedding_lookup([c.constant(TABLE)] * 2, [0], partition_strategy="any")


@pytest.mark.parametrize("count", [1, 2, 4, 6])
@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_every_row_is_found_however_the_table_is_cut(count, strategy):
    cut = [TABLE[i::count] for i in range(count)] if strategy == "mod" else np.array_split(TABLE, count)
    ids = np.array([5, 0, 3, 3, 2, 1, 4])
    rows = embedding_lookup([c.constant(part) for part in cut], ids, strategy)
    np.testing.assert_array_equal(evaluate(rows), TABLE[ids])


@pytest.mark.parametrize("many", [7, 5000])
@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_each_table_is_asked_once_for_each_row_and_gets_the_sum_of_its_gradients(strategy, many):
    cut = [TABLE[i::3] for i in range(3)] if strategy == "mod" else np.array_split(TABLE, 3)
    tables = [Variable(part) for part in cut]
    feeds = dict(zip(tables, cut, strict=True))
    ids = np.random.default_rng(3).integers(0, 6, (many, 2))
    weights = np.random.default_rng(4).integers(-9, 9, (many, 2, 2)).astype(np.float32)
    rows = embedding_lookup(tables, ids, strategy)
    assert rows.shape.as_list() == [many, 2, 2]
    np.testing.assert_array_equal(evaluate(rows, feeds), TABLE[ids])

    wanted = np.zeros((6, 2), np.float32)
    np.add.at(wanted, ids.reshape(-1), weights.reshape(-1, 2))
    slopes = evaluate(gradients(reduce_sum(rows * c.constant(weights)), tables), feeds)
    cut_again = [wanted[i::3] for i in range(3)] if strategy == "mod" else np.array_split(wanted, 3)
    for slope, part in zip(slopes, cut_again, strict=True):
        assert len(set(slope.indices)) == len(slope.indices)
        np.testing.assert_array_equal(slope.dense(), part)


def test_a_table_that_no_id_is_in_is_asked_for_nothing():
    tables = [Variable(TABLE[i::2]) for i in range(2)]
    feeds = {table: TABLE[i::2] for i, table in enumerate(tables)}
    node = embedding_lookup(tables, [2, 0, 2])
    np.testing.assert_array_equal(evaluate(node, feeds), TABLE[[2, 0, 2]])
    first, second = evaluate(gradients(reduce_sum(node), tables), feeds)
    assert (sorted(first.indices), list(second.indices)) == ([0, 1], [])


def test_no_ids_give_no_rows():
    node = embedding_lookup([c.constant(TABLE[0::2]), c.constant(TABLE[1::2])], np.zeros((0, 3), np.int64))
    assert evaluate(node).shape == (0, 3, 2)


def test_rows_may_be_clipped_to_a_norm():
    rows = evaluate(embedding_lookup(c.constant([[3.0, 4.0], [0.3, 0.4]]), [0, 1], max_norm=1.0))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)


@pytest.mark.parametrize(
    ("combiner", "weights", "expected"),
    [
        ("sum", None, [TABLE[0] + TABLE[2], TABLE[5]]),
        ("mean", None, [(TABLE[0] + TABLE[2]) / 2, TABLE[5]]),
        (None, [1.0, 3.0, 2.0], [(TABLE[0] + 3 * TABLE[2]) / 4, TABLE[5]]),
        ("sqrtn", [1.0, 3.0, 2.0], [(TABLE[0] + 3 * TABLE[2]) / np.sqrt(10), TABLE[5]]),
    ],
)
def test_several_ids_of_a_row_are_combined(combiner, weights, expected):
    places = [[0, 0], [0, 1], [1, 0]]
    ids = SparseTensor(places, [0, 2, 5], [2, 2])
    given = None if weights is None else SparseTensor(places, weights, [2, 2])
    table = Variable(TABLE)
    node = embedding_lookup_sparse(table, ids, given, combiner=combiner)
    assert node.shape.as_list() == [2, 2]
    np.testing.assert_allclose(evaluate(node, {table: TABLE}), expected, rtol=1e-6)
    (slope,) = gradients(node, table)
    assert isinstance(slope, IndexedSlices)
    np.testing.assert_array_equal(evaluate(slope.indices, {table: TABLE}), [0, 2, 5])


def test_sparse_lookups_check_their_arguments():
    ids = SparseTensor([[0, 0]], [0], [1, 1])
    with pytest.raises(ValueError, match="combiner must be one of"):
        embedding_lookup_sparse(c.constant(TABLE), ids, None, combiner="max")
    with pytest.raises(TypeError, match="sp_ids must be SparseTensor"):
        embedding_lookup_sparse(c.constant(TABLE), [0], None)


def sampled(features, weights, biases, labels, drawn, expected, kind):
    """The loss of each example, written out."""
    true_expected, drawn_expected = expected
    out = []
    for x, label, q in zip(features, labels[:, 0], true_expected[:, 0], strict=True):
        scores = [x @ weights[label] + biases[label] - np.log(q)]
        for number, p in zip(drawn, drawn_expected, strict=True):
            hit = number == label and kind == "softmax"
            scores.append(-np.inf if hit else x @ weights[number] + biases[number] - np.log(p))
        scores = np.array(scores)
        if kind == "softmax":
            out.append(np.log(np.exp(scores).sum()) - scores[0])
        else:
            out.append(np.log1p(np.exp(-scores[0])) + np.log1p(np.exp(scores[1:])).sum())
    return out


@pytest.mark.parametrize(("loss", "kind"), [(nce_loss, "nce"), (sampled_softmax_loss, "softmax")])
def test_sampled_losses(loss, kind):
    random = np.random.default_rng(1)
    weights, biases = random.normal(size=(6, 3)).astype(np.float32), random.normal(size=6).astype(np.float32)
    features, labels = random.normal(size=(2, 3)).astype(np.float32), np.array([[1], [4]])
    drawn, expected = np.array([4, 0, 2]), (np.array([[0.5], [0.2]]), np.array([0.3, 0.9, 0.4]))
    tables = Variable(weights), Variable(biases)
    values = (c.constant(drawn), c.constant(np.float32(expected[0])), c.constant(np.float32(expected[1])))
    node = loss(*tables, labels, c.constant(features), 3, 6, sampled_values=values)
    feeds = dict(zip(tables, (weights, biases), strict=True))
    np.testing.assert_allclose(
        evaluate(node, feeds), sampled(features, weights, biases, labels, drawn, expected, kind), rtol=1e-5
    )
    slopes = gradients(reduce_sum(node), tables)
    assert all(isinstance(slope, IndexedSlices) for slope in slopes)
    for slope, table in zip(evaluate(slopes, feeds), tables, strict=True):
        assert sorted(set(slope.indices)) == [0, 1, 2, 4]
        step = np.zeros(table.shape.as_list(), np.float32)
        step.reshape(6, -1)[1, 0] = 1e-2
        sides = [np.sum(evaluate(node, {**feeds, table: feeds[table] + sign * step})) for sign in (1, -1)]
        assert slope.dense().reshape(6, -1)[1, 0] == pytest.approx((sides[0] - sides[1]) / 2e-2, abs=1e-3)


def test_sampled_losses_draw_for_themselves():
    table, biases = c.constant(TABLE), c.zeros([6])
    node = nce_loss(table, biases, [[0], [1]], c.ones([2, 2]), 4, 6, seed=1)
    first, second = evaluate(node), evaluate(node)
    assert node.shape.as_list() == [2]
    assert np.all(np.isfinite(first))
    assert not np.array_equal(first, second)
