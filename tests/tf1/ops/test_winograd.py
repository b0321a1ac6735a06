"""Convolution by tiles, and its gradient at the filters, beside sums over windows in float64."""

import numpy as np
import pytest

from globalstep.tf1.ops import winograd
from globalstep.tf1.ops.sliding_windows import Fit, convolve


def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def padded(images, around, edge, size):
    """Give images with the zeros around them, as large as `size` results need."""
    ends = [want + edge - 1 - have for want, have in zip(size, images.shape[1:3], strict=True)]
    pads = [(before, end - before) for before, end in zip(around, ends, strict=True)]
    return np.pad(images, ((0, 0), *pads, (0, 0))).astype(np.float64)


def windows(images, filters_edge, around, size):
    """Give all windows, [n, rows, columns, edge, edge, channels]."""
    found = np.lib.stride_tricks.sliding_window_view(
        padded(images, around, filters_edge, size), (filters_edge, filters_edge), axis=(1, 2)
    )
    return np.moveaxis(found, 3, -1)


CASES = [
    # n, height, width, channels, outputs, edge, around, size
    (3, 8, 8, 2, 3, 3, (1, 1), (8, 8)),
    (2, 9, 7, 1, 4, 3, (0, 2), (7, 9)),
    (1, 3, 3, 5, 1, 3, (0, 0), (1, 1)),
    (4, 14, 14, 3, 2, 5, (2, 2), (14, 14)),
    (2, 5, 11, 2, 2, 5, (1, 0), (3, 7)),
    (2, 4, 4, 2, 2, 5, (4, 4), (8, 8)),
]


@pytest.mark.parametrize("block_bytes", [1, winograd._BLOCK_BYTES], ids=["an image at a time", "all at once"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_are_sums_over_windows(case, block_bytes, monkeypatch):
    monkeypatch.setattr(winograd, "_BLOCK_BYTES", block_bytes)
    n, height, width, channels, outputs, edge, around, size = case
    images, filters = numbers(0, n, height, width, channels), numbers(1, edge, edge, channels, outputs)
    gradient = numbers(2, n, *size, outputs)
    by_window = windows(images, edge, around, size)
    found = winograd.convolved(images, filters, around, size)
    expected = np.tensordot(by_window, filters.astype(np.float64), 3)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-6 * np.abs(expected).max())
    found = winograd.filters_gradient(images, gradient, around, edge)
    expected = np.tensordot(by_window, gradient.astype(np.float64), ((0, 1, 2), (0, 1, 2)))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_blocks_of_images_leave_nothing_behind(monkeypatch):
    """The memory of one block is used for the next; the last one is smaller."""
    images, filters = numbers(0, 7, 6, 6, 4), numbers(1, 3, 3, 4, 4)
    alone = [winograd.convolved(images[at : at + 1], filters, (1, 1), (6, 6)) for at in range(7)]
    monkeypatch.setattr(winograd, "_BLOCK_BYTES", 3 * 36 * 4 * 8 * 4)
    np.testing.assert_allclose(
        winograd.convolved(images, filters, (1, 1), (6, 6)), np.concatenate(alone), rtol=1e-5, atol=1e-5
    )


def test_the_same_bits_every_time():
    images, filters = numbers(0, 20, 12, 12, 32), numbers(1, 5, 5, 32, 32)
    fit = Fit((1, 1), (2, 2), (2, 2))
    first, again = (convolve(images, filters, fit) for _ in range(2))
    np.testing.assert_array_equal(first, again)
