"""What golden values cannot show of images: what is random, and what is refused."""

import numpy as np
import pytest

import globalstep as gs


@pytest.fixture
def session():
    with gs.Graph().as_default(), gs.Session() as opened:
        yield opened


IMAGE = np.arange(24, dtype=np.float32).reshape(2, 4, 3)


@pytest.mark.parametrize(("function", "axis"), [("random_flip_left_right", 1), ("random_flip_up_down", 0)])
def test_a_random_flip_gives_one_of_two_images(session, function, axis):
    node = getattr(gs.image, function)(gs.constant(IMAGE), seed=3)
    found = [session.run(node) for _ in range(20)]
    flipped = [np.array_equal(value, np.flip(IMAGE, axis)) for value in found]
    assert all(mirrored or np.array_equal(value, IMAGE) for mirrored, value in zip(flipped, found, strict=True))
    assert 0 < sum(flipped) < 20


def test_each_image_of_a_batch_is_flipped_by_itself(session):
    batch = np.stack([IMAGE] * 40)
    found = session.run(gs.image.random_flip_left_right(batch, seed=1))
    flipped = [np.array_equal(value, IMAGE[:, ::-1]) for value in found]
    assert all(mirrored or np.array_equal(value, IMAGE) for mirrored, value in zip(flipped, found, strict=True))
    assert 5 < sum(flipped) < 35


def test_equal_seeds_draw_equally():
    def drawn():
        with gs.Graph().as_default(), gs.Session() as session:
            gs.set_random_seed(5)
            x = gs.constant(IMAGE / 24)
            nodes = [
                gs.image.random_brightness(x, 0.3),
                gs.image.random_contrast(x, 0.5, 2.0),
                gs.image.random_hue(x, 0.4),
                gs.image.random_saturation(x, 0.5, 2.0),
                gs.random_crop(x, [1, 2, 3]),
            ]
            return [session.run(nodes) for _ in range(2)]

    (first, second), again = drawn(), drawn()
    for one, same, other in zip(first, again[0], second, strict=True):
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, other) or one.size < 10


def test_random_changes_stay_within_their_bounds(session):
    x = gs.constant(np.full((2, 2, 3), 0.5, np.float32))
    brightness = gs.image.random_brightness(x, 0.2)
    shifts = [float(session.run(brightness)[0, 0, 0]) - 0.5 for _ in range(30)]
    assert min(shifts) < -0.05 < 0.05 < max(shifts)
    assert max(map(abs, shifts)) <= 0.2


def test_a_random_crop_lies_anywhere(session):
    node = gs.random_crop(gs.constant(np.arange(5)), [2], seed=9)
    assert node.shape.as_list() == [2]
    found = {tuple(session.run(node).tolist()) for _ in range(60)}
    assert found == {(0, 1), (1, 2), (2, 3), (3, 4)}
    whole = gs.random_crop(gs.constant(IMAGE), [2, 4, 3])
    np.testing.assert_array_equal(session.run(whole), IMAGE)


def test_the_gradient_of_a_random_crop_lies_where_it_was_cut(session):
    x = gs.constant(np.arange(6, dtype=np.float32))
    crop = gs.random_crop(x, [2], seed=4)
    value, gradient = session.run([crop, gs.gradients(crop, x)[0]])
    assert np.flatnonzero(gradient).tolist() == value.astype(int).tolist()


def test_sizes_that_are_known_in_the_run_only(session):
    size, x = gs.placeholder(gs.int32, [2]), gs.placeholder(gs.float32, [None, None, 3])
    nodes = [
        gs.image.resize_images(x, size),
        gs.image.resize_image_with_crop_or_pad(x, size[0], size[1]),
        gs.image.crop_to_bounding_box(x, 0, 1, size[0] - 1, 2),
        gs.image.pad_to_bounding_box(x, 1, 0, size[0] + 1, size[1]),
    ]
    found = session.run(nodes, {size: [3, 5], x: IMAGE})
    assert [value.shape for value in found] == [(3, 5, 3), (3, 5, 3), (2, 2, 3), (4, 5, 3)]
    with pytest.raises(gs.errors.InvalidArgumentError, match="height must be >= target"):
        session.run(nodes[2], {size: [9, 5], x: IMAGE})
    with pytest.raises(gs.errors.InvalidArgumentError, match="width must be <= target"):
        session.run(nodes[3], {size: [3, 2], x: IMAGE})
    with pytest.raises(gs.errors.InvalidArgumentError, match="Need value.shape >= size"):
        session.run(gs.random_crop(x, [9, 9, 3]), {x: IMAGE})


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda x: gs.image.central_crop(x, 1.5), "central_fraction must be within"),
        (lambda x: gs.image.crop_to_bounding_box(x, -1, 0, 1, 1), "offset_height must be >= 0"),
        (lambda x: gs.image.crop_to_bounding_box(x, 0, 3, 1, 2), r"width must be >= target \+ offset"),
        (lambda x: gs.image.pad_to_bounding_box(x, 0, 0, 1, 9), "height must be <= target - offset"),
        (lambda x: gs.image.resize_image_with_crop_or_pad(x, 0, 2), "target_height must be > 0"),
        (lambda x: gs.image.resize_images(x, [1, 2, 3]), "'size' must be a 1-D Tensor of 2 elements"),
        (lambda x: gs.image.resize_images(x, [1, 2], 7), "Resize method is not implemented"),
        (lambda x: gs.image.flip_left_right(x[0, 0]), "must have 3 or 4 dimensions"),
        (lambda x: gs.image.random_brightness(x, -1), "max_delta must be non-negative"),
        (lambda x: gs.image.random_contrast(x, 2, 1), "upper must be > lower"),
        (lambda x: gs.image.random_saturation(x, -1, 1), "lower must be non-negative"),
        (lambda x: gs.image.random_hue(x, 0.6), "max_delta must be <= 0.5"),
        (lambda x: gs.image.adjust_hue(x[..., :2], 0.1), "takes images of 3 channels"),
        (lambda x: gs.random_crop(x, [3, 4, 3]), "Need value.shape >= size"),
        (lambda x: gs.image.decode_jpeg("", channels=4), "channels must be one of 0, 1, 3"),
    ],
)
def test_what_cannot_be_is_refused(build, text):
    with pytest.raises(ValueError, match=text):
        build(gs.constant(IMAGE))


def test_bytes_that_are_no_image(session):
    whole = session.run(gs.image.encode_jpeg(np.zeros((20, 20, 3), np.uint8)))
    for bad in (b"no image", b"", whole[: len(whole) // 2]):
        with pytest.raises(gs.errors.InvalidArgumentError, match="no whole image in one of the formats JPEG"):
            session.run(gs.image.decode_jpeg(gs.constant(bad)))
    with pytest.raises(gs.errors.InvalidArgumentError, match="image must have 1 or 3 channels"):
        session.run(gs.image.encode_jpeg(np.zeros((2, 2, 4), np.uint8)))


def test_an_image_survives_its_files(session, tmp_path):
    smooth = (np.indices((16, 24)).sum(axis=0)[..., None] * [5, 3, 4]).astype(np.uint8)
    contents = session.run(gs.image.encode_jpeg(smooth, quality=100))
    found = session.run(gs.image.decode_jpeg(contents))
    assert np.abs(found.astype(int) - smooth).max() <= 4
    half = session.run(gs.image.decode_jpeg(contents, ratio=2))
    assert half.shape == (8, 12, 3)
    deep = (np.arange(12).reshape(3, 4, 1) * 5000).astype(np.uint16)
    again = gs.image.decode_png(gs.image.encode_png(gs.constant(deep)), dtype=gs.uint16)
    np.testing.assert_array_equal(session.run(again), deep)


def test_a_constant_of_bytes_keeps_zeros_at_its_end(session):
    assert session.run(gs.constant(b"ab\x00\x00")) == b"ab\x00\x00"
    assert session.run(gs.constant([b"a\x00", b"b"])).tolist() == [b"a\x00", b"b"]
