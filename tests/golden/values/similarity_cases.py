"""Boxes in images and how alike images are; see value_cases."""

import numpy as np
from value_cases import Values, fed

BOXES = np.array([[0, 0, 1, 1], [0.1, 0.3, 0.8, 0.9], [0.5, 0.2, 1.3, 0.6], [0.9, 0.9, 0.2, 0.1]], np.float32)


def of(build, *shapes):
    """Give the case of a function of images."""

    def case(tf):
        made = [fed(tf, f"image {i}", *shape) for i, shape in enumerate(shapes)]
        nodes = [node for node, _ in made]
        found = build(tf, *nodes)
        outputs = (
            {str(i): node for i, node in enumerate(found)} if isinstance(found, (list, tuple)) else {"found": found}
        )
        return Values(outputs, made, nodes)

    return case


def crops(size, **options):
    return of(lambda tf, x: tf.image.crop_and_resize(x, BOXES, [0, 1, 1, 0], size, **options), (2, 7, 6, 3))


def suppressed(*arguments, count=30):
    random = np.random.RandomState(4)
    corners = random.uniform(size=(count, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners[:, 0], corners[:, 1]], axis=1)
    boxes[3] = boxes[4]
    boxes[5, 2:] = boxes[5, :2]
    scores = random.permutation(count).astype(np.float32) / count
    return lambda tf: {"found": tf.image.non_max_suppression(boxes, scores, *arguments)}


def drawn(depth):
    boxes = np.array([[[0, 0, 1, 1], [0.1, 0.3, 0.8, 0.9]], [[0.5, 0.2, 1.3, 0.6], [0.9, 0.9, 0.2, 0.1]]], np.float32)

    def case(tf):
        node, value = fed(tf, "image", 2, 9, 8, depth)
        return Values({"found": tf.image.draw_bounding_boxes(node, boxes)}, [(node, value)])

    return case


def bytes_alike(tf):
    one, a = fed(tf, "one", 2, 16, 18, 3, dtype=np.uint8)
    other, b = fed(tf, "other", 2, 16, 18, 3, dtype=np.uint8)
    return Values({"found": tf.image.ssim(one, other, 255)}, [(one, a), (other, b)])


CASES = {
    "crop_and_resize": crops([4, 5]),
    "crop_and_resize to one place": crops([1, 1]),
    "crop_and_resize with a value outside": crops([3, 9], extrapolation_value=0.5),
    "crop_and_resize nearest": crops([5, 4], method="nearest"),
    "non_max_suppression": suppressed(10),
    "non_max_suppression of few": suppressed(3, 0.2),
    "non_max_suppression by score": suppressed(30, 0.7, 0.4),
    "draw_bounding_boxes": drawn(3),
    "draw_bounding_boxes gray": drawn(1),
    "ssim": of(lambda tf, x, y: tf.image.ssim(x, y, 1.0), (2, 14, 13, 3), (2, 14, 13, 3)),
    "ssim of one image": of(lambda tf, x, y: tf.image.ssim(x, y, 2.0, filter_size=5), (9, 8, 1), (9, 8, 1)),
    "ssim of bytes": bytes_alike,
    "ssim_multiscale": of(
        lambda tf, x, y: tf.image.ssim_multiscale(x, 0.8 * x + 0.2 * y, 1.0, (0.3, 0.4, 0.3), filter_size=4),
        *((2, 22, 19, 2), (2, 22, 19, 2)),
    ),
    "image_gradients": of(lambda tf, x: tf.image.image_gradients(x), (2, 4, 5, 3)),
    "sobel_edges": of(lambda tf, x: tf.image.sobel_edges(x), (2, 4, 5, 3)),
}
