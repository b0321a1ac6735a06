"""The compiled gradient of the largest values of windows, beside the one in numpy."""

import numpy as np
import pytest

from globalstep.ops import sliding_windows
from globalstep.ops.sliding_windows import Fit, largest_of_windows, largest_vjp

FITS = [
    ((2, 2), Fit((2, 2), (0, 0), (0, 0))),
    ((2, 2), Fit((2, 2), (0, 1), (0, 1))),
    ((3, 3), Fit((2, 2), (1, 1), (0, 1))),  # windows that overlap
    ((3, 2), Fit((1, 3), (1, 0), (1, 1))),
]


def both(images, size, fit, monkeypatch):
    """Give the gradient by numpy and by the kernel."""
    gradient = np.random.default_rng(1).normal(size=largest_of_windows(images, size, fit).shape).astype(images.dtype)
    found = []
    for least in (1 << 40, 0):
        monkeypatch.setattr(sliding_windows, "_MUCH", least)
        _, (back,) = largest_vjp(images, size, fit)
        found.append(back(gradient))
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("size", "fit"), FITS, ids=str)
def test_the_kernel_gives_what_numpy_gives(size, fit, dtype, monkeypatch):
    # Few different numbers, so that windows have several largest ones.
    images = np.random.default_rng(0).integers(0, 3, (3, 7, 9, 5)).astype(dtype)
    by_numpy, by_kernel = both(images, size, fit, monkeypatch)
    assert by_kernel.dtype == dtype
    assert by_numpy.any()
    np.testing.assert_allclose(by_kernel, by_numpy, rtol=1e-6 if dtype is np.float32 else 1e-14, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*encountered in (divide|multiply)")
def test_what_is_no_number_has_a_gradient_that_is_none(monkeypatch):
    images = np.zeros((1, 4, 4, 1), np.float32)
    images[0, 0, 0] = np.nan
    by_numpy, by_kernel = both(images, (2, 2), Fit((2, 2), (0, 0), (0, 0)), monkeypatch)
    np.testing.assert_array_equal(by_kernel, by_numpy)
    assert np.isnan(by_kernel[0, :2, :2]).all()


@pytest.mark.parametrize("shape", [(0, 4, 4, 2), (2, 4, 4, 1)])
def test_no_images_and_one_channel(shape, monkeypatch):
    by_numpy, by_kernel = both(np.ones(shape, np.float32), (2, 2), Fit((2, 2), (0, 0), (0, 0)), monkeypatch)
    np.testing.assert_array_equal(by_kernel, by_numpy)


def test_views_of_other_arrays(monkeypatch):
    images = np.random.default_rng(0).normal(size=(4, 3, 6, 8)).astype(np.float32).transpose(1, 2, 3, 0)
    by_numpy, by_kernel = both(images, (2, 2), Fit((2, 2), (0, 0), (0, 0)), monkeypatch)
    np.testing.assert_array_equal(by_kernel, by_numpy)
