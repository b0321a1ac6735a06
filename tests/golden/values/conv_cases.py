"""Convolutions and what goes with them; see value_cases."""

import functools
import itertools

from value_cases import Values, fed


def of(build, *shapes, known=True):
    """Give the case of a function of an input and filters."""

    def case(tf):
        made = [fed(tf, f"input {i}", *shape, known=known or i > 0) for i, shape in enumerate(shapes)]
        nodes = [node for node, _ in made]
        return Values({"found": build(tf, *nodes)}, made, nodes)

    return case


CASES = {}
for _padding, _stride, _size in itertools.product(("SAME", "VALID"), (1, 2, 3), ((3, 3), (2, 5), (1, 1))):
    CASES[f"depthwise {_padding} {_stride} {_size}"] = of(
        functools.partial(
            lambda tf, x, w, padding, stride: tf.nn.depthwise_conv2d(x, w, [1, stride, stride, 1], padding),
            padding=_padding,
            stride=_stride,
        ),
        *((2, 7, 6, 3), (*_size, 3, 2)),
    )
    _rows, _columns = (
        (-(-7 // _stride), -(-6 // _stride))
        if _padding == "SAME"
        else ((7 - _size[0]) // _stride + 1, (6 - _size[1]) // _stride + 1)
    )
    CASES[f"transposed {_padding} {_stride} {_size}"] = of(
        functools.partial(
            lambda tf, x, w, padding, stride: tf.nn.conv2d_transpose(
                x, w, [2, 7, 6, 3], [1, stride, stride, 1], padding=padding
            ),
            padding=_padding,
            stride=_stride,
        ),
        *((2, _rows, _columns, 4), (*_size, 3, 4)),
    )
CASES |= {
    "depthwise dilated": of(
        lambda tf, x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME", rate=[2, 2]), (2, 7, 6, 3), (3, 2, 3, 2)
    ),
    "separable": of(
        lambda tf, x, w, p: tf.nn.separable_conv2d(x, w, p, [1, 2, 2, 1], "SAME"),
        *((2, 7, 6, 3), (3, 3, 3, 2), (1, 1, 6, 4)),
    ),
    "separable dilated": of(
        lambda tf, x, w, p: tf.nn.separable_conv2d(x, w, p, [1, 1, 1, 1], "VALID", rate=[2, 1]),
        *((2, 7, 6, 3), (3, 3, 3, 2), (1, 1, 6, 4)),
    ),
    "transposed unknown": of(
        lambda tf, x, w: tf.nn.conv2d_transpose(x, w, tf.stack([tf.shape(x)[0], 8, 6, 3]), [1, 2, 2, 1]),
        *((2, 4, 3, 4), (3, 3, 3, 4)),
        known=False,
    ),
    "atrous": of(lambda tf, x, w: tf.nn.atrous_conv2d(x, w, 2, "SAME"), (2, 7, 6, 3), (3, 3, 3, 4)),
    "atrous valid": of(lambda tf, x, w: tf.nn.atrous_conv2d(x, w, 3, "VALID"), (2, 9, 8, 3), (3, 2, 3, 4)),
    "conv1d": of(lambda tf, x, w: tf.nn.conv1d(x, w, 2, "SAME"), (2, 7, 3), (3, 3, 4)),
    "convolution": of(lambda tf, x, w: tf.nn.convolution(x, w, "SAME", [2, 1]), (2, 7, 6, 3), (3, 2, 3, 4)),
    "convolution dilated": of(
        lambda tf, x, w: tf.nn.convolution(x, w, "VALID", dilation_rate=[2, 3]), (2, 7, 8, 3), (3, 2, 3, 4)
    ),
    "convolution of sequences": of(
        lambda tf, x, w: tf.nn.convolution(x, w, "SAME", dilation_rate=[2]), (2, 7, 3), (3, 3, 4)
    ),
    "pool max": of(lambda tf, x: tf.nn.pool(x, [3, 2], "MAX", "SAME", strides=[2, 1]), (2, 7, 6, 3)),
    "pool mean": of(lambda tf, x: tf.nn.pool(x, [3, 2], "AVG", "SAME", strides=[2, 1]), (2, 7, 6, 3)),
    "pool of sequences": of(lambda tf, x: tf.nn.pool(x, [3], "AVG", "VALID"), (2, 7, 3)),
    "lrn": of(lambda tf, x: tf.nn.lrn(x), (2, 3, 2, 9)),
    "lrn of AlexNet": of(lambda tf, x: tf.nn.lrn(x, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75), (2, 3, 2, 12)),
    "lrn of few channels": of(
        lambda tf, x: tf.nn.local_response_normalization(x, depth_radius=2, bias=2, alpha=0.5, beta=0.6), (2, 3, 2, 2)
    ),
}
for _padding, _stride in itertools.product(("SAME", "VALID"), (1, 2)):
    CASES[f"conv3d {_padding} {_stride}"] = of(
        functools.partial(
            lambda tf, x, w, padding, stride: tf.nn.conv3d(x, w, [1, stride, 1, stride, 1], padding),
            padding=_padding,
            stride=_stride,
        ),
        *((2, 5, 4, 6, 3), (3, 2, 2, 3, 4)),
    )
    for _kind in ("max_pool3d", "avg_pool3d"):
        CASES[f"{_kind} {_padding} {_stride}"] = of(
            functools.partial(
                lambda tf, x, kind, padding, stride: getattr(tf.nn, kind)(
                    x, [1, 2, 3, 2, 1], [1, stride, stride, 1, 1], padding
                ),
                kind=_kind,
                padding=_padding,
                stride=_stride,
            ),
            (2, 5, 4, 6, 3),
        )
CASES |= {
    "conv3d of unknown sizes": of(
        lambda tf, x, w: tf.nn.conv3d(x, w, [1, 1, 1, 1, 1], "SAME"), (2, 3, 4, 3, 2), (2, 3, 2, 2, 3), known=False
    ),
    "conv3d_transpose": of(
        lambda tf, x, w: tf.nn.conv3d_transpose(x, w, [2, 6, 5, 4, 3], [1, 2, 2, 1, 1], "SAME"),
        *((2, 3, 3, 4, 2), (3, 2, 2, 3, 2)),
    ),
    "conv3d_transpose valid": of(
        lambda tf, x, w: tf.nn.conv3d_transpose(x, w, [2, 7, 4, 5, 3], [1, 2, 1, 1, 1], "VALID"),
        *((2, 3, 3, 4, 2), (3, 2, 2, 3, 2)),
    ),
}
