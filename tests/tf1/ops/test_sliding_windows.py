"""Convolution and the largest value of windows, beside loops over windows, and their gradients."""

import numpy as np
import pytest

from globalstep.tf1.ops import sliding_windows
from globalstep.tf1.ops.sliding_windows import (
    Fit,
    collect,
    convolve,
    largest_of_windows,
    share_of_windows,
    to_images,
    to_kernels,
)

FITS = (
    Fit((1, 1), (0, 0), (0, 0)),
    Fit((1, 1), (1, 1), (0, 1)),
    Fit((2, 1), (1, 0), (1, 1)),
    Fit((2, 3), (0, 0), (0, 0)),
)
SIZES = ((1, 1), (2, 2), (3, 2))


def numbers(*shape, dtype=np.float64):
    return np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape).astype(dtype) / 7


def windows_of(images, size, fit, fill):
    """Give each window with its place, by loops."""
    padded = np.pad(images, ((0, 0), fit.rows, fit.columns, (0, 0)), constant_values=fill)
    for row, top in enumerate(range(0, padded.shape[1] - size[0] + 1, fit.strides[0])):
        for column, left in enumerate(range(0, padded.shape[2] - size[1] + 1, fit.strides[1])):
            yield (row, column), padded[:, top : top + size[0], left : left + size[1]]


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", SIZES)
def test_both_are_what_loops_give(fit, size, monkeypatch):
    images, kernels = numbers(5, 6, 5, 3), numbers(*size, 3, 4)
    for of_block in (1, 4096, 1 << 20):  # an image at a time, some, all
        monkeypatch.setattr(sliding_windows, "_BLOCK_BYTES", of_block)
        found = convolve(images, kernels, fit)
        largest = largest_of_windows(images, size, fit)
        count = 0
        for (row, column), window in windows_of(images, size, fit, 0):
            np.testing.assert_allclose(found[:, row, column], np.tensordot(window, kernels, 3))
            count += 1
        for (row, column), window in windows_of(images, size, fit, -np.inf):
            np.testing.assert_array_equal(largest[:, row, column], window.max(axis=(1, 2)))
        assert found.shape == (5, *largest.shape[1:3], 4)
        assert count == found.shape[1] * found.shape[2]


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", SIZES)
def test_gradients_are_the_functions_transposed(fit, size):
    images, kernels = numbers(3, 4, 5, 2), numbers(*size, 2, 3)
    product = convolve(images, kernels, fit)
    weights = np.random.default_rng(1).normal(size=product.shape)
    expected = np.sum(product * weights)
    np.testing.assert_allclose(np.sum(to_images(weights, kernels, images.shape, fit) * images), expected)
    np.testing.assert_allclose(np.sum(to_kernels(images, weights, size, fit) * kernels), expected)
    if max(fit.rows) >= size[0] or max(fit.columns) >= size[1]:
        return  # a window without an image has no largest value
    largest = largest_of_windows(images, size, fit)
    weights = np.random.default_rng(1).normal(size=largest.shape)
    shares = share_of_windows(weights, images, largest, size, fit)
    # All numbers differ: where the images grow by a little, the largest values do as the images' own do.
    change = np.random.default_rng(2).normal(size=images.shape) * 1e-6
    moved = largest_of_windows(images + change, size, fit)
    np.testing.assert_allclose(np.sum((moved - largest) * weights), np.sum(shares * change), rtol=1e-6)
    np.testing.assert_allclose(np.sum(collect(change, images, largest, size, fit) * weights), np.sum(shares * change))


def shared_evenly(images, size, fit):
    largest = largest_of_windows(images, size, fit)
    return share_of_windows(np.ones_like(largest), images, largest, size, fit)


def test_equal_largest_values_share_the_gradient():
    images = np.array([[3.0, 3.0, 1.0, 0.0], [1.0, 0.0, 2.0, 5.0]], np.float32).reshape(1, 2, 4, 1)
    found = shared_evenly(images, (2, 2), Fit((2, 2), (0, 0), (0, 0)))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.reshape(2, 4), [[0.5, 0.5, 0, 0], [0, 0, 0, 1]])


def test_more_equal_values_than_a_byte_counts():
    found = shared_evenly(np.ones((1, 20, 20, 1)), (20, 20), Fit((1, 1), (0, 0), (0, 0)))
    np.testing.assert_allclose(found, 1 / 400)


def test_no_images_at_all():
    fit, images = Fit((1, 1), (1, 1), (1, 1)), np.zeros((0, 4, 4, 2), np.float32)
    kernels = numbers(3, 3, 2, 5, dtype=np.float32)
    assert convolve(images, kernels, fit).shape == (0, 4, 4, 5)
    assert not to_kernels(images, convolve(images, kernels, fit), (3, 3), fit).any()


def test_windows_that_are_larger_than_the_images_are_refused():
    for function in (
        lambda x: convolve(x, numbers(3, 3, 1, 1), Fit((1, 1), (0, 0), (0, 0))),
        lambda x: largest_of_windows(x, (3, 3), Fit((1, 1), (0, 0), (0, 0))),
    ):
        with pytest.raises(ValueError, match="larger"):
            function(numbers(1, 2, 4, 1))


POOLS = [
    ((2, 2), Fit((2, 2), (0, 0), (0, 0))),
    ((2, 2), Fit((2, 2), (0, 1), (0, 1))),
    ((3, 3), Fit((2, 2), (1, 1), (0, 1))),  # windows that overlap
    ((3, 2), Fit((1, 3), (1, 0), (1, 1))),
]


def by_numpy_and_kernel(images, size, fit, monkeypatch):
    """Give the gradient by numpy and by the kernel."""
    largest = largest_of_windows(images, size, fit)
    gradient = np.random.default_rng(1).normal(size=largest.shape).astype(images.dtype)
    found = []
    for least in (1 << 40, 0):
        monkeypatch.setattr(sliding_windows, "_MUCH", least)
        found.append(share_of_windows(gradient, images, largest, size, fit))
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("size", "fit"), POOLS, ids=str)
def test_the_kernel_gives_what_numpy_gives(size, fit, dtype, monkeypatch):
    # Few different numbers, so that windows have several largest ones.
    images = np.random.default_rng(0).integers(0, 3, (3, 7, 9, 5)).astype(dtype)
    by_numpy, by_kernel = by_numpy_and_kernel(images, size, fit, monkeypatch)
    assert by_kernel.dtype == dtype
    assert by_numpy.any()
    np.testing.assert_allclose(by_kernel, by_numpy, rtol=1e-6 if dtype is np.float32 else 1e-14, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*encountered in (divide|multiply)")
def test_what_is_no_number_has_a_gradient_that_is_none(monkeypatch):
    images = np.zeros((1, 4, 4, 1), np.float32)
    images[0, 0, 0] = np.nan
    by_numpy, by_kernel = by_numpy_and_kernel(images, (2, 2), Fit((2, 2), (0, 0), (0, 0)), monkeypatch)
    np.testing.assert_array_equal(by_kernel, by_numpy)
    assert np.isnan(by_kernel[0, :2, :2]).all()


@pytest.mark.parametrize("shape", [(0, 4, 4, 2), (2, 4, 4, 1)])
def test_no_images_and_one_channel(shape, monkeypatch):
    images, fit = np.ones(shape, np.float32), Fit((2, 2), (0, 0), (0, 0))
    by_numpy, by_kernel = by_numpy_and_kernel(images, (2, 2), fit, monkeypatch)
    np.testing.assert_array_equal(by_kernel, by_numpy)


def test_views_of_other_arrays(monkeypatch):
    images = np.random.default_rng(0).normal(size=(4, 3, 6, 8)).astype(np.float32).transpose(1, 2, 3, 0)
    by_numpy, by_kernel = by_numpy_and_kernel(images, (2, 2), Fit((2, 2), (0, 0), (0, 0)), monkeypatch)
    np.testing.assert_array_equal(by_kernel, by_numpy)
