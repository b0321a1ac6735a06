"""What golden values cannot show of images: what is random, and what is refused."""

import numpy as np
import pytest

import globalstep as gs

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


def sampled(session, size, boxes, count=200, **options):
    """Draw boxes; gives begins, sizes and boxes, checked against each other."""
    drawn = gs.image.sample_distorted_bounding_box(size, boxes, seed=4, **options)
    found = [session.run(drawn) for _ in range(count)]
    for begin, extent, box in found:
        assert begin[2] == 0
        assert extent[2] == -1
        assert box.shape == (1, 1, 4)
        wanted = [*begin[:2], *(begin + extent)[:2]] / np.array([*size[:2], *size[:2]])
        np.testing.assert_allclose(box[0, 0], wanted, rtol=1e-6)
    return np.array([begin for begin, _, _ in found]), np.array([extent for _, extent, _ in found])


def test_a_sampled_box_has_an_area_and_an_aspect_within_its_ranges(session):
    begin, size = sampled(
        session, [200, 300, 3], [[[0.0, 0.0, 1.0, 1.0]]], min_object_covered=0.0, aspect_ratio_range=[0.5, 2.0],
        area_range=[0.1, 0.4],
    )  # fmt: skip
    height, width = size[:, 0], size[:, 1]
    assert (height * width >= 0.1 * 60_000).all()
    assert (height * width <= 0.4 * 60_000).all()
    assert (np.abs(width - np.clip(width / height, 0.5, 2.0) * height) <= 0.5).all()
    assert len(np.unique(begin, axis=0)) > 150
    assert (begin[:, :2] >= 0).all()
    assert ((begin + size)[:, :2] < [200, 300]).all()


def test_a_sampled_box_covers_enough_of_one_object(session):
    boxes = [[[0.1, 0.1, 0.3, 0.2], [0.6, 0.5, 0.9, 0.9]]]
    begin, size = sampled(session, [100, 100, 1], boxes, min_object_covered=0.7, area_range=[0.05, 0.3])
    parts = []
    for top, left, bottom, right in np.array(boxes[0]) * 100:
        rows = np.minimum((begin + size)[:, 0], bottom) - np.maximum(begin[:, 0], top)
        columns = np.minimum((begin + size)[:, 1], right) - np.maximum(begin[:, 1], left)
        parts.append(np.maximum(rows, 0) * np.maximum(columns, 0) / ((bottom - top) * (right - left)))
    assert (np.maximum(*parts) >= 0.69).all()
    assert (parts[0] >= 0.7).any()
    assert (parts[1] >= 0.7).any()


def test_the_whole_image_is_taken_where_no_box_can_be_found(session):
    begin, size = sampled(
        session, [10, 20, 3], [[[0.0, 0.0, 1.0, 1.0]]], 3, min_object_covered=1.0, area_range=[0.1, 0.2]
    )
    assert size.tolist() == [[10, 20, -1]] * 3
    assert not begin.any()


def test_without_objects_the_image_is_one_if_that_is_asked_for(session):
    none = np.zeros((1, 0, 4), np.float32)
    sampled(session, [50, 50, 3], none, 3, use_image_if_no_bounding_boxes=True)
    with pytest.raises(gs.errors.InvalidArgumentError, match="No bounding boxes provided"):
        sampled(session, [50, 50, 3], none, 1)


def test_a_sampled_box_crops_and_is_drawn(session):
    image = gs.constant(np.arange(40 * 60 * 3, dtype=np.float32).reshape(40, 60, 3))
    begin, size, box = gs.image.sample_distorted_bounding_box(
        gs.shape(image), gs.placeholder_with_default(np.array([[[0, 0, 1, 1]]], np.float32), [1, None, 4])
    )
    cropped = gs.slice(image, begin, size)
    whole, part, extent = session.run([gs.image.draw_bounding_boxes(image[None] / 7200.0, box), cropped, size])
    assert whole.shape == (1, 40, 60, 3)
    assert part.shape == (*extent[:2], 3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"area_range": [0.5]}, "must specify 2"),
        ({"area_range": [0.0, 1.0]}, "must be positive"),
        ({"area_range": [0.5, 1.5]}, "less then or equal to 1.0"),
        ({"aspect_ratio_range": [-1.0, 1.0]}, "must be positive"),
        ({"max_attempts": 0}, "Max attempts"),
        ({"min_object_covered": -0.5}, "non-negative"),
    ],
)
def test_a_box_that_cannot_be_is_refused(session, options, text):
    with pytest.raises(gs.errors.InvalidArgumentError, match=text):
        sampled(session, [50, 50, 3], [[[0.0, 0.0, 1.0, 1.0]]], 1, **options)


@pytest.mark.parametrize("boxes", [[[[0.0, 0.0, 1.0, 1.5]]], [[0.0, 0.0, 1.0, 1.0]], [[[0.0, 0.0, 1.0]]]])
def test_objects_outside_of_the_image_or_of_other_shapes_are_refused(session, boxes):
    with pytest.raises(gs.errors.InvalidArgumentError, match="bounding box"):
        sampled(session, [50, 50, 3], boxes, 1)
