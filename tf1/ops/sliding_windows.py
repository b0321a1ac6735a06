"""Arrays over the sliding windows of images: convolution and the largest value, with their gradients.

Images are [n, height, width, channels]. A convolution is a product of matrices whose one operand holds all windows of
some images, and that is 25 times as large as the images for filters of 5 x 5. So it is made for a few images at a time,
into the same memory again and again: there it is written and multiplied while it is in the processor's cache. Large
convolutions of float32 with filters of 3 x 3 and 5 x 5 are left to `globalstep.tf1.ops.winograd`, which multiplies
less.

Layer: tf1, beside `globalstep.tf1.ops.primitives`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from globalstep.tf1.execution.products import in_parts, matmul

#: Windows of so many bytes are multiplied at a time: what stays in a core's cache beside the product.
_BLOCK_BYTES = 2 << 20
#: From so many multiplications, or other work of that size, loading numba for compiled loops is worth it.
_MUCH = 1 << 23
_KERNEL_DTYPES = (np.float32, np.float64)
#: The sizes of filters that its tiles are made for, and how many channels and outputs they need at least.
_TILED, _LEAST_CHANNELS = ((3, 3), (5, 5)), 16
#: The gradient of the largest values takes as long as so many multiplications for each element.
_PASSES = 16


class Fit(NamedTuple):
    """The positions of windows on images.

    Attributes:
        strides: From one window to the next, down and to the right.
        rows: How many elements are put above and below the images.
        columns: How many are put left and right.
    """

    strides: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]


def _padded_size(shape: tuple[int, ...], fit: Fit) -> tuple[int, int]:
    return shape[1] + sum(fit.rows), shape[2] + sum(fit.columns)


def _padded(images: Any, fit: Fit, fill: float) -> Any:
    if not any(fit.rows) and not any(fit.columns):
        return images
    out = np.full((len(images), *_padded_size(images.shape, fit), images.shape[3]), fill, images.dtype)
    _inside(out, images.shape, fit)[...] = images
    return out


def _inside(padded: Any, shape: tuple[int, ...], fit: Fit) -> Any:
    """Give the part of padded images that the images are."""
    return padded[:, fit.rows[0] : fit.rows[0] + shape[1], fit.columns[0] : fit.columns[0] + shape[2]]


def _windows(images: Any, size: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Give the windows as a view, [n, *places, *size, channels]."""
    windows = np.lib.stride_tricks.sliding_window_view(images, size, axis=tuple(range(1, 1 + len(size))))
    return np.moveaxis(windows[(slice(None), *(slice(None, None, step) for step in strides))], 1 + len(size), -1)


def _blocks(windows: Any) -> Iterator[tuple[slice, Any]]:
    """Give the windows of a few images at a time, a row each; a block lasts until the next one."""
    count = len(windows)
    if not count:
        return
    if windows.flags.c_contiguous:  # filters of one pixel
        yield slice(count), windows.reshape(math.prod(windows.shape[:3]), -1)
        return
    most = min(count, max(_BLOCK_BYTES // windows[0].nbytes, 1))
    held = np.empty(most * windows[0].size, windows.dtype)
    for at in range(0, count, most):
        part = windows[at : at + most]
        block = held[: part.size]
        rows, length = math.prod(part.shape[:3]), math.prod(part.shape[3:])
        if part.shape[-1] == 1:  # A row of windows has longer runs than a window of one channel.
            block.reshape(part.shape[3:] + part.shape[:3]).transpose(3, 4, 5, 0, 1, 2)[...] = part
            yield slice(at, at + len(part)), block.reshape(length, rows).T
        else:
            block.reshape(part.shape)[...] = part
            yield slice(at, at + len(part)), block.reshape(rows, length)


def patches(images: Any, size: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Give the windows of images, or of volumes, as [n, *places, *size, channels]."""
    return np.ascontiguousarray(_windows(images, size, strides))


def overlay(windows: Any, size: tuple[int, ...], strides: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Add windows up where `patches` took them from."""
    out = np.zeros(shape, windows.dtype)
    for place, part in _parts(out, size, strides):
        part += windows[(*(slice(None),) * (1 + len(size)), *place)]
    return out


def _parts(images: Any, size: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Give for each place in a window what all windows have there: a view [n, *places, channels]."""
    ends = [length - window + 1 for length, window in zip(images.shape[1:-1], size, strict=True)]
    if min(ends) < 1:
        raise ValueError(f"Windows of {size} are larger than images of {images.shape[1:-1]}")
    for place in np.ndindex(*size):
        steps = (slice(at, at + end, step) for at, end, step in zip(place, ends, strides, strict=True))
        yield place, images[(slice(None), *steps)]


def _tiles(images: Any, kernels: tuple[int, ...], fit: Fit) -> Any:
    """Give `globalstep.tf1.ops.winograd` where it is quicker for images and the shape of kernels; else None."""
    height, width, channels, outputs = kernels
    rows, columns = _size_of_result(images.shape, (height, width), fit)
    if images.dtype != np.float32 or fit.strides != (1, 1) or (height, width) not in _TILED:
        return None
    m = 7 - height
    tiled = -(-rows // m) * -(-columns // m) * 36
    windowed = rows * columns * height * width
    much = len(images) * windowed * channels * outputs >= _MUCH
    if not much or min(channels, outputs) < _LEAST_CHANNELS or 2 * tiled > windowed:
        return None
    return importlib.import_module("globalstep.tf1.ops.winograd")


def _size_of_result(shape: tuple[int, ...], size: tuple[int, int], fit: Fit) -> tuple[int, int]:
    """Give how many windows lie on images of `shape`, down and across."""
    height, width = _padded_size(shape, fit)
    return (height - size[0]) // fit.strides[0] + 1, (width - size[1]) // fit.strides[1] + 1


def convolve(images: Any, kernels: Any, fit: Fit) -> Any:
    """Convolve images with kernels [height, width, channels, outputs]; gives [n, rows, columns, outputs]."""
    tiles = _tiles(images, kernels.shape, fit)
    if tiles is not None:
        size = _size_of_result(images.shape, kernels.shape[:2], fit)
        return tiles.convolved(images, kernels, (fit.rows[0], fit.columns[0]), size)
    windows = _windows(_padded(images, fit, 0), kernels.shape[:2], fit.strides)
    outputs = kernels.shape[3]
    out = np.empty((*windows.shape[:3], outputs), images.dtype)
    flat = kernels.reshape(-1, outputs)

    def multiply(part: slice) -> None:
        for at, block in _blocks(windows[part]):
            np.matmul(block, flat, out=out[part][at].reshape(-1, outputs))

    in_parts(multiply, len(windows), windows.size * outputs)
    return out


def to_kernels(images: Any, gradient: Any, size: tuple[int, int], fit: Fit) -> Any:
    """Give the gradient of a convolution at its kernels, of `size`."""
    channels, outputs = images.shape[3], gradient.shape[3]
    tiles = _tiles(images, (*size, channels, outputs), fit)
    if tiles is not None:
        return tiles.filters_gradient(images, gradient, (fit.rows[0], fit.columns[0]), size[0])
    windows = _windows(_padded(images, fit, 0), size, fit.strides)
    #: Where a part begins -> its sum.
    sums: dict[int, Any] = {}

    def multiply(part: slice) -> None:
        total = np.zeros((size[0] * size[1] * channels, outputs), images.dtype)
        for at, block in _blocks(windows[part]):
            total += block.T @ gradient[part][at].reshape(-1, outputs)
        sums[part.start] = total

    in_parts(multiply, len(windows), windows.size * outputs)
    first, *others = (sums[start] for start in sorted(sums))
    return sum(others, first).reshape(*size, channels, outputs)


def to_images(gradient: Any, kernels: Any, shape: tuple[int, ...], fit: Fit) -> Any:
    """Give the gradient of a convolution at its images, of `shape`."""
    height, width, channels, outputs = kernels.shape
    turned = Fit((1, 1), _complement(height, fit.rows), _complement(width, fit.columns))
    if fit.strides == (1, 1) and min(*turned.rows, *turned.columns) >= 0:
        # A convolution again, with the kernels turned round: quicker than adding windows up.
        return convolve(gradient, np.ascontiguousarray(kernels[::-1, ::-1].swapaxes(2, 3)), turned)
    flat = matmul(gradient.reshape(-1, outputs), kernels.reshape(-1, outputs).T)
    windows = flat.reshape(*gradient.shape[:3], height, width, channels)
    padded = (shape[0], *_padded_size(shape, fit), channels)
    return _inside(overlay(windows, (height, width), fit.strides, padded), shape, fit)


def _complement(size: int, around: tuple[int, int]) -> tuple[int, int]:
    """Give how much is put around the gradient, that every window over the images is met as often as it was."""
    return size - 1 - around[0], size - 1 - around[1]


def largest_of_windows(images: Any, size: tuple[int, int], fit: Fit) -> Any:
    """Give the largest value of each window, [n, rows, columns, channels]; equal ones share the gradient evenly."""
    out = np.empty((len(images), *_size_of_result(images.shape, size, fit), images.shape[3]), images.dtype)

    def find(part: slice) -> None:
        maxima = out[part]
        (_, first), *others = _parts(_padded(images[part], fit, -np.inf), size, fit.strides)
        maxima[...] = first
        for _, place in others:
            np.maximum(maxima, place, out=maxima)

    in_parts(find, len(images), _PASSES // 4 * images.size)
    return out


def share_of_windows(gradient: Any, images: Any, largest: Any, size: tuple[int, int], fit: Fit) -> Any:
    """Give the gradient of `largest_of_windows` at the images."""
    if _PASSES * images.size >= _MUCH and images.dtype in _KERNEL_DTYPES:
        kernels = importlib.import_module("globalstep.tf1.ops.window_kernels")
        shares = np.zeros(images.shape, images.dtype)
        windows = size, fit.strides, (fit.rows[0], fit.columns[0])

        def share_where_they_lie(part: slice) -> None:
            kernels.share(images[part], largest[part], gradient[part], windows, shares[part])

        in_parts(share_where_they_lie, len(images), _PASSES * images.size)
        return shares
    out = np.zeros((len(images), *_padded_size(images.shape, fit), images.shape[3]), images.dtype)

    def share(part: slice) -> None:
        places, count = _places(images[part], largest[part], size, fit)
        part_of_one = gradient[part] / count
        for place, (_, target) in zip(places, _parts(out[part], size, fit.strides), strict=True):
            target += part_of_one * place

    in_parts(share, len(images), _PASSES * out.size)
    return _inside(out, images.shape, fit)


def collect(values: Any, images: Any, largest: Any, size: tuple[int, int], fit: Fit) -> Any:
    """Give the mean of `values` where the images are the largest of a window: what `share_of_windows` is transposed."""
    places, count = _places(images, largest, size, fit)
    parts = _parts(_padded(values, fit, 0), size, fit.strides)
    return sum(part * place for place, (_, part) in zip(places, parts, strict=True)) / count


def _places(images: Any, largest: Any, size: tuple[int, int], fit: Fit) -> tuple[list[Any], Any]:
    """Say for each place in a window where it is the largest, and how many are, in the dtype of the images."""
    places = [np.equal(part, largest) for _, part in _parts(_padded(images, fit, -np.inf), size, fit.strides)]
    # Counted in bytes if they fit: adding truth values to floats takes numpy ten times as long.
    count = np.zeros(largest.shape, np.min_scalar_type(len(places)))
    for place in places:
        count += place.view(np.uint8)
    return places, count.astype(largest.dtype)
