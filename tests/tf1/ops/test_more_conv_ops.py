"""Orders of dimensions, and what is refused, of convolutions; tests/golden/values has their numbers."""

import numpy as np
import pytest

import globalstep as gs

RANDOM = np.random.RandomState(1)
IMAGES = RANDOM.normal(size=(2, 6, 5, 3)).astype(np.float32)
SEQUENCES = RANDOM.normal(size=(2, 6, 3)).astype(np.float32)
FILTERS = RANDOM.normal(size=(3, 3, 3, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "build",
    [
        lambda x, order, at: gs.nn.conv2d(x, FILTERS, at(1, 2, 1, 1), "SAME", data_format=order),
        lambda x, order, at: gs.nn.max_pool(x, at(1, 2, 3, 1), at(1, 2, 1, 1), "SAME", data_format=order),
        lambda x, order, at: gs.nn.avg_pool(x, at(1, 2, 3, 1), at(1, 2, 1, 1), "VALID", data_format=order),
        lambda x, order, at: gs.nn.depthwise_conv2d(x, FILTERS, at(1, 2, 2, 1), "SAME", data_format=order),
        lambda x, order, at: gs.nn.separable_conv2d(
            x, FILTERS, RANDOM.normal(size=(1, 1, 12, 2)) * 0 + 0.5, at(1, 1, 1, 1), "SAME", data_format=order
        ),
        lambda x, order, at: gs.nn.conv2d_transpose(
            x, np.moveaxis(FILTERS, 2, 3), at(2, 12, 9, 4), at(1, 2, 2, 1), data_format=order
        ),
        lambda x, order, at: gs.nn.convolution(x, FILTERS, "SAME", [2, 1], data_format=order),
        lambda x, order, at: gs.nn.pool(x, [2, 3], "MAX", "SAME", data_format=order),
    ],
)
def test_channels_may_come_first(build):
    with gs.Graph().as_default(), gs.Session() as session:
        x = gs.constant(IMAGES)
        last = build(x, "NHWC", lambda n, h, w, c: [n, h, w, c])
        first = build(gs.transpose(x, [0, 3, 1, 2]), "NCHW", lambda n, h, w, c: [n, c, h, w])
        assert first.shape.as_list() == [last.shape.as_list()[i] for i in (0, 3, 1, 2)]
        values = session.run([last, first, gs.gradients(last, x)[0], gs.gradients(first, x)[0]])
    np.testing.assert_array_equal(np.moveaxis(values[0], -1, 1), values[1])
    np.testing.assert_allclose(values[2], values[3], rtol=1e-5, atol=1e-6)


def test_channels_of_sequences_may_come_first():
    filters = FILTERS[0]
    with gs.Graph().as_default(), gs.Session() as session:
        last = gs.nn.conv1d(SEQUENCES, filters, 2, "SAME")
        first = gs.nn.conv1d(np.moveaxis(SEQUENCES, 2, 1), filters, [1, 1, 2], "SAME", data_format="NCW")
        one, other = session.run([last, first])
    np.testing.assert_array_equal(np.moveaxis(one, 2, 1), other)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda x: gs.nn.conv2d(x, FILTERS, [1, 1, 1, 1], "SAME", data_format="NDHWC"), "'NDHWC' is not supported"),
        (lambda x: gs.nn.conv2d(x, FILTERS, [1, 1, 1, 1], "HALF"), "Unknown padding scheme 'HALF'"),
        (lambda x: gs.nn.conv2d_transpose(x, FILTERS, [2, 6, 5, 3], 1), "input channels does not match .* 3 != 4"),
        (
            lambda x: gs.nn.depthwise_conv2d(x, FILTERS[:, :, :2], [1, 1, 1, 1], "SAME"),
            "have 3 channels, the filters 2",
        ),
        (lambda x: gs.nn.depthwise_conv2d(x, FILTERS, [1, 2, 2, 1], "SAME", rate=[2, 2]), "not supported in conjunct"),
        (lambda x: gs.nn.separable_conv2d(x, FILTERS, FILTERS, [1, 1, 1, 1], "SAME"), "must be .1, 1, inputs"),
        (lambda x: gs.nn.convolution(x, FILTERS, "SAME", [2, 2], [2, 2]), "not supported in conjunction"),
        (lambda x: gs.nn.convolution(gs.expand_dims(x, 1), FILTERS, "SAME"), "For volumes use gs.torch"),
        (lambda x: gs.nn.pool(x, [2, 2], "MIN", "SAME"), "pooling_type must be 'MAX' or 'AVG'"),
        (lambda x: gs.nn.pool(x, [2, 2], "MAX", "SAME", dilation_rate=[2, 2]), "dilation_rate above 1"),
        (lambda x: gs.nn.lrn(x[0]), "must be rank 4 but is rank 3"),
    ],
)
def test_what_does_not_fit_is_refused(build, text):
    with gs.Graph().as_default(), pytest.raises(ValueError, match=text):
        build(gs.constant(IMAGES))


def test_an_output_shape_that_cannot_be():
    with gs.Graph().as_default(), gs.Session() as session:
        made = gs.nn.conv2d_transpose(IMAGES, np.moveaxis(FILTERS, 2, 3), [2, 14, 9, 4], [1, 2, 2, 1])
        with pytest.raises(gs.errors.InvalidArgumentError, match="actual = 6, computed = 7"):
            session.run(made)
