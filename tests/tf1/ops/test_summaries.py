"""Summary ops: tags, values, buckets, pictures, merging; and the seed's own rules for each."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary

from globalstep.errors import InvalidArgumentError, OutOfRangeError
from globalstep.tf1.graph.graph import Graph, GraphKeys, Node, as_node, get_collection, name_scope
from globalstep.tf1.ops import summaries
from globalstep.tf1.ops.summary_values import bucket_limits, histogram_proto, normalize_image


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def evaluate(node, feeds=None):
    """Evaluates a node without a session, which summaries do not need."""
    feeds = feeds or {}
    if node in feeds:
        return feeds[node]
    return node.fn(*(evaluate(source, feeds) for source in node.inputs))


def summary(node, feeds=None):
    data = evaluate(node, feeds)
    assert isinstance(data, bytes)
    return Summary.FromString(data)


def values(node, feeds=None):
    return {value.tag: value for value in summary(node, feeds).value}


def placeholder(dtype="float32", shape=None):
    return Node("Placeholder", dtype=dtype, shape=shape)


def test_a_scalar_has_its_scoped_name_as_tag():
    with name_scope("train"):
        first = summaries.scalar("loss", 0.5)
        second = summaries.scalar("loss", as_node(np.int64(3)))
    assert first.name == "train/loss:0"
    assert first.op.type == "ScalarSummary"
    assert first.dtype.name == "string"
    assert first.shape == ()
    assert not first.stateful
    assert {tag: value.simple_value for tag, value in values(first).items()} == {"train/loss": 0.5}
    assert values(second)["train/loss_1"].simple_value == 3.0
    assert get_collection(GraphKeys.SUMMARIES) == [first, second]


def test_a_family_stands_in_front_of_the_tag():
    with name_scope("outer"):
        node = summaries.scalar("loss", 1.0, family="losses")
    assert node.op.name == "outer/losses/loss"
    assert list(values(node)) == ["losses/outer/losses/loss"]


def test_illegal_characters_of_a_tag_are_replaced_and_said(caplog):
    caplog.set_level("INFO", logger="globalstep")
    node = summaries.scalar("/my loss:0", 1.0)
    assert list(values(node)) == ["my_loss_0"]
    assert "Summary name /my loss:0 is illegal; using my_loss_0 instead." in caplog.text


def test_collections_can_be_chosen():
    node = summaries.scalar("loss", 1.0, collections=["mine"])
    assert get_collection("mine") == [node]
    assert get_collection(GraphKeys.SUMMARIES) == []


def test_a_scalar_of_another_shape_is_refused_when_run():
    node = summaries.scalar("loss", [1.0, 2.0])
    with pytest.raises(InvalidArgumentError, match=r"tags and values not the same shape: \[\] != \[2\] \(tag 'loss'\)"):
        evaluate(node)


def test_the_seeds_scalar_summary_takes_lists_of_tags():
    node = summaries.scalar_summary(["a b", "loss"], [1.0, 2.5])
    assert {tag: value.simple_value for tag, value in values(node).items()} == {"a b": 1.0, "loss": 2.5}
    with name_scope("train"):
        single = summaries.scalar_summary("loss", 3.0, name="mine")
    assert single.op.name == "train/mine"
    assert values(single)["loss"].simple_value == 3.0
    with pytest.raises(InvalidArgumentError, match=r"not the same shape: \[2\] != \[1\]"):
        evaluate(summaries.scalar_summary(["a", "b"], [1.0]))
    assert len(get_collection(GraphKeys.SUMMARIES)) == 3


def test_buckets_are_tensorflows():
    limits = bucket_limits()
    assert len(limits) == 2 * 775 + 1
    assert limits[0] == -np.finfo(np.float64).max
    assert limits[-1] == np.finfo(np.float64).max
    assert limits[775] == 0.0
    assert limits[776] == 1e-12
    assert limits[777] == 1e-12 * 1.1
    assert 0.9e20 < limits[-2] < 1e20
    assert np.array_equal(limits, -limits[::-1])


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(arrays.arrays(np.float32, st.integers(0, 40), elements=finite))
def test_a_histogram_counts_each_value_below_its_limit(data):
    histogram = histogram_proto(data, "w")
    assert histogram.num == data.size
    assert sum(histogram.bucket) == data.size
    assert len(histogram.bucket) == len(histogram.bucket_limit)
    assert list(histogram.bucket_limit) == sorted(histogram.bucket_limit)
    assert all(a > 0 or b > 0 for a, b in zip(histogram.bucket, histogram.bucket[1:], strict=False))
    wide, lower = data.astype(np.float64), -np.inf
    for limit, count in zip(histogram.bucket_limit, histogram.bucket, strict=True):
        assert count == np.count_nonzero((wide >= lower) & (wide < limit))
        lower = limit
    if data.size:
        assert histogram.min == data.min()
        assert histogram.max == data.max()
        assert histogram.sum == pytest.approx(wide.sum(), rel=1e-9, abs=1e-9 * np.abs(wide).sum())
        assert histogram.sum_squares == pytest.approx((wide**2).sum())


def test_a_histogram_of_nothing_has_one_bucket():
    histogram = histogram_proto(np.zeros(0), "w")
    assert list(histogram.bucket) == [0.0]
    assert list(histogram.bucket_limit) == [np.finfo(np.float64).max]


def test_a_histogram_node_gives_the_histogram_of_any_shape():
    node = summaries.histogram("weights", np.array([[1.0, 1.0], [-2.0, 0.0]], np.float32))
    histogram = values(node)["weights"].histo
    assert (histogram.num, histogram.min, histogram.max, histogram.sum) == (4.0, -2.0, 1.0, 0.0)
    assert summaries.histogram("weights", [1.0]).op.name == "weights_1"


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "Nan"), (np.inf, "Infinity"), (-np.inf, "Infinity")])
def test_a_value_that_is_not_finite_is_an_error(bad, word):
    node = summaries.histogram("weights", [1.0, bad])
    with pytest.raises(InvalidArgumentError, match=f"{word} in summary histogram for: weights"):
        evaluate(node)
    # The seed's type for the seed's name.
    with pytest.raises(OutOfRangeError, match=f"{word} in summary histogram for: old tag"):
        evaluate(summaries.histogram_summary("old tag", [1.0, bad]))


def test_a_picture_without_negative_values_is_scaled_to_255():
    picture = np.array([[[0.0], [1.0], [2.0], [4.0]]], np.float32)
    assert normalize_image(picture).ravel().tolist() == [0, 63, 127, 255]


def test_a_picture_with_a_negative_value_has_zero_at_127():
    assert normalize_image(np.array([[[-4.0], [0.0], [2.0]]])).ravel().tolist() == [0, 127, 190]
    assert normalize_image(np.array([[[-1.0], [0.0], [4.0]]])).ravel().tolist() == [95, 127, 255]
    assert normalize_image(np.array([[[-3.0], [-1.5]]])).ravel().tolist() == [0, 63]


@given(arrays.arrays(np.float32, (2, 3, 1), elements=finite))
def test_a_normalized_picture_keeps_the_seeds_promises(picture):
    levels = normalize_image(picture)
    if np.abs(picture).max().astype(np.float64) < 1e-6:
        assert len(np.unique(levels)) == 1
    elif picture.min() < 0:
        assert levels.min() == 0 or levels.max() == 255
        assert (levels[picture == 0] == 127).all()
    else:
        assert levels.max() == 255
        assert (levels[picture == 0] == 0).all()
    order = np.argsort(picture, axis=None)
    assert (np.diff(levels.ravel()[order].astype(int)) >= 0).all()


def test_black_and_uint8_pictures_stay_what_they_are():
    assert normalize_image(np.zeros((1, 2, 1))).ravel().tolist() == [0, 0]
    raw = np.array([[[3], [200]]], np.uint8)
    assert normalize_image(raw) is raw


@pytest.mark.parametrize(("channels", "color"), [(1, [255]), (3, [255, 0, 0]), (4, [255, 0, 0, 255])])
def test_pixels_that_are_not_finite_are_red_and_do_not_count(channels, color):
    picture = np.ones((1, 3, channels))
    picture[0, 1, -1] = np.nan
    picture[0, 2] = 2.0
    levels = normalize_image(picture)
    assert levels[0, 1].tolist() == color
    assert levels[0, 0].tolist() == [127] * channels
    assert levels[0, 2].tolist() == [255] * channels


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pictures_are_png_of_the_same_channels(channels):
    batch = np.random.default_rng(0).random((5, 4, 6, channels)).astype(np.float32)
    node = summaries.image("digits", batch)
    found = values(node)
    assert list(found) == ["digits/image/0", "digits/image/1", "digits/image/2"]
    for index, value in enumerate(found.values()):
        assert (value.image.height, value.image.width, value.image.colorspace) == (4, 6, channels)
        with Image.open(io.BytesIO(value.image.encoded_image_string)) as picture:
            assert picture.format == "PNG"
            pixels = np.asarray(picture).reshape(4, 6, channels)
        assert np.array_equal(pixels, normalize_image(batch[index]))


def test_the_tag_of_a_single_picture_has_no_number():
    batch = np.zeros((2, 1, 1, 1), np.uint8)
    assert list(values(summaries.image("a", batch, max_outputs=1))) == ["a/image"]
    assert list(values(summaries.image("b", batch[:1], max_outputs=2))) == ["b/image/0"]
    assert list(values(summaries.image_summary("old tag", batch, 1))) == ["old tag/image"]
    assert list(values(summaries.image_summary("old tag", batch))) == ["old tag/image/0", "old tag/image/1"]


def test_what_is_no_batch_of_pictures_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"Tensor must be 4-D with last dim 1, 3, or 4, not \[2\]"):
        evaluate(summaries.image("a", np.zeros(2, np.uint8)))
    with pytest.raises(InvalidArgumentError, match=r"not \[1, 1, 1, 2\]"):
        evaluate(summaries.image("a", np.zeros((1, 1, 1, 2), np.uint8)))
    with pytest.raises(TypeError, match="has DataType int32 not in list of allowed values"):
        summaries.image("a", np.zeros((1, 1, 1, 1), np.int32))
    with pytest.raises(ValueError, match="max_outputs must be at least 1, not 0"):
        summaries.image("a", np.zeros((1, 1, 1, 1)), max_outputs=0)


def test_text_keeps_its_shape_and_names_its_plugin():
    value = values(summaries.text("notes", [["a", "b"]]))["notes"]
    assert value.metadata.plugin_data.plugin_name == "text"
    assert list(value.tensor.string_val) == [b"a", b"b"]
    assert [dim.size for dim in value.tensor.tensor_shape.dim] == [1, 2]
    with pytest.raises(ValueError, match=r"Expected tensor .* to have dtype string, got float32"):
        summaries.text("numbers", [1.0])


def test_merging_gives_the_union_in_order():
    node = summaries.merge([summaries.scalar("a", 1.0), summaries.scalar("b", 2.0)])
    assert node.op.type == "MergeSummary"
    assert node.op.name == "Merge/MergeSummary"
    assert list(values(node)) == ["a", "b"]
    assert node not in get_collection(GraphKeys.SUMMARIES)
    assert summaries.merge_summary([node], collections=["mine"]).op.name == "MergeSummary"
    assert len(get_collection("mine")) == 1


def test_a_duplicate_tag_in_a_merge_is_an_error():
    twice = [summaries.scalar_summary("loss", 1.0), summaries.scalar_summary("loss", 2.0)]
    with pytest.raises(InvalidArgumentError, match="Duplicate tag loss found in summary inputs"):
        evaluate(summaries.merge_summary(twice))
    with pytest.raises(InvalidArgumentError, match="Duplicate tag loss found in summary inputs"):
        evaluate(summaries.merge(twice))
    fed = placeholder("string", ())
    with pytest.raises(InvalidArgumentError, match="Could not parse one of the summary inputs"):
        evaluate(summaries.merge([fed]), {fed: b"\xff\xff"})


def test_merge_all_merges_what_was_collected():
    assert summaries.merge_all() is None
    assert summaries.merge_all_summaries() is None
    with name_scope("train"):
        summaries.scalar("loss", 1.0)
    with name_scope("eval"):
        summaries.scalar("loss", 2.0)
    summaries.scalar("other", 3.0, collections=["mine"])
    assert list(values(summaries.merge_all())) == ["train/loss", "eval/loss"]
    assert list(values(summaries.merge_all(scope="eval"))) == ["eval/loss"]
    assert list(values(summaries.merge_all_summaries())) == ["train/loss", "eval/loss"]
    assert list(values(summaries.merge_all_summaries("mine"))) == ["other"]
