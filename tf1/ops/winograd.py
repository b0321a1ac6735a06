"""Convolution by Winograd's tiles: a quarter to 0.36 of the multiplications that a product over windows takes.

Images are cut into tiles of 6 x 6 that overlap, each of which gives m x m values of the convolution; m is 7 less the
size of the filters. Tiles and filters are taken as polynomials, and multiplied where those have been evaluated at six
points down and six across: for each of the 36 pairs of points a product of matrices over the channels. The source: S.
Winograd, "Arithmetic Complexity of Computations", 1980; A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural
Networks", 2015. With the points 0, 1, -1, 1/2, -2 and infinity a float32 result is off by up to 2e-6 of the largest
one, where a sum over windows is off by 8e-7, and the gradient at the filters by up to 7e-6 instead of 5e-7.

The gradient at the filters is the transposed steps.

Layer: tf1, below `globalstep.tf1.ops.sliding_windows`. The first call imports numba. Threads: functions are pure.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.runtime.kernels import kernel, read_only
from globalstep.tf1.execution.products import in_parts

Array = npt.NDArray[Any]

#: The edge of a tile, and the points besides infinity.
_EDGE = 6
_POINTS = np.array([0, 1, -1, 0.5, -2])
#: No row of a matrix that is applied to tiles has more numbers than so many besides zeros.
_TERMS = 5
#: Tiles and products of so many bytes are made at a time: what stays in a core's caches.
_BLOCK_BYTES = 2 << 20


class _Sums(NamedTuple):
    """A matrix as the sums that it makes: for each row, which elements [rows, 5] times which factors [rows, 5]."""

    at: Array
    by: Array


class _Steps(NamedTuple):
    """The matrices for filters of one size."""

    #: From a tile to its values at the points: [6, 6].
    tiles: _Sums
    #: From the values of a product to its coefficients that are wanted, [m, 6], and the transpose.
    results: _Sums
    gradients: _Sums
    #: From filters to their values at the points: [6, size].
    filters: Array


def _sums(matrix: Array) -> _Sums:
    at, by = np.zeros((len(matrix), _TERMS), np.int64), np.zeros((len(matrix), _TERMS), np.float32)
    for row, factors in enumerate(matrix):
        places = np.flatnonzero(factors)
        at[row, : places.size], by[row, : places.size] = places, factors[places]
    return _Sums(read_only(at), read_only(by))


@functools.cache
def _steps(size: int) -> _Steps:
    m = _EDGE + 1 - size
    others = [_POINTS[point != _POINTS] for point in _POINTS]
    # numpy gives the coefficient of the highest power first.
    tiles = [np.append(np.poly(some)[::-1], 0) for some in others] + [np.poly(_POINTS)[::-1]]
    powers = _POINTS[:, None] ** np.arange(_EDGE)
    divisors = np.array([np.prod(point - some) for point, some in zip(_POINTS, others, strict=True)])
    filters = np.vstack([powers[:, :size] / divisors[:, None], np.eye(size)[-1]])
    results = np.vstack([powers[:, :m], np.eye(m)[-1]])
    return _Steps(_sums(np.array(tiles)), _sums(results.T), _sums(results), filters.astype(np.float32))


@kernel
def _add_up(out: Array, source: Array, at: Array, by: Array, step: Any) -> None:
    """Give the sum of five runs of numbers, each times a factor; a run begins at each multiple of `step`."""
    n = out.size
    one, two, three = source[at[0] * step :][:n], source[at[1] * step :][:n], source[at[2] * step :][:n]
    four, five = source[at[3] * step :][:n], source[at[4] * step :][:n]
    a, b, c, d, e = by[0], by[1], by[2], by[3], by[4]
    for i in range(n):
        out[i] = a * one[i] + b * two[i] + c * three[i] + d * four[i] + e * five[i]


@kernel
def _evaluate(images: Array, around: Any, held: Array, lines: Array, sums: Any, out: Array) -> None:
    """Give the values of tiles at the points.

    Args:
        images: [n, height, width, channels].
        around: How much is put above and to the left of them.
        held: Zeros, a padded image's place: [rows, m, tiles in a row and what reaches over, channels]. A column lies
            with those that have the same place in their tiles, so that every sum is over long runs.
        lines: Place for six lines of those: [6, m * tiles... * channels].
        sums: Which lines each sum takes, [6, 5]; which columns, by their places in a line of `held`; the factors.
        out: [6, 6, n, tiles down, tiles across, channels]; overwritten.
    """
    m, channels = held.shape[1], images.shape[3]
    down, across, by = sums
    flat_held, flat_lines = held.reshape(-1), lines.reshape(-1)
    for image in range(images.shape[0]):
        for y in range(images.shape[1]):
            for x in range(images.shape[2]):
                to = held[y + around[0], (x + around[1]) % m, (x + around[1]) // m]
                source = images[image, y, x]
                for channel in range(channels):
                    to[channel] = source[channel]
        for row in range(out.shape[3]):
            for i in range(out.shape[0]):
                _add_up(lines[i], flat_held[row * m * lines.shape[1] :], down[i], by[i], lines.shape[1])
            for i in range(out.shape[0]):
                line = flat_lines[i * lines.shape[1] :]
                for j in range(out.shape[1]):
                    _add_up(out[i, j, image, row].reshape(-1), line, across[j], by[j], channels)


@kernel
def _take_results(products: Array, lines: Array, strip: Array, at: Array, by: Array, out: Array) -> None:
    """Give the coefficients of products.

    Args:
        products: At the points: [6, 6, n, tiles down, tiles across, outputs].
        lines: Place for what one row of tiles gives: [m, 6, tiles across * outputs].
        strip: Place for the columns of results that have the same place in their tiles: [tiles across, outputs].
        at: Which products each sum takes, [m, 5].
        by: The factors, [m, 5].
        out: [n, rows, columns, outputs]; overwritten.
    """
    m, of_point = lines.shape[0], products[0, 0].size
    flat_products, flat_lines, flat_strip = products.reshape(-1), lines.reshape(-1), strip.reshape(-1)
    for image in range(out.shape[0]):
        for row in range(products.shape[3]):
            first = (image * products.shape[3] + row) * lines.shape[2]
            height = min(m, out.shape[1] - row * m)
            for i in range(height):
                for j in range(lines.shape[1]):
                    source = flat_products[j * of_point + first :]
                    _add_up(lines[i, j], source, at[i], by[i], lines.shape[1] * of_point)
            for i in range(height):
                line = flat_lines[i * lines.shape[1] * lines.shape[2] :]
                for j in range(m):
                    _add_up(flat_strip, line, at[j], by[j], lines.shape[2])
                    for column in range((out.shape[2] - j + m - 1) // m):
                        to, source = out[image, row * m + i, column * m + j], strip[column]
                        for output in range(source.size):
                            to[output] = source[output]


class _Tiles:
    """Tiles of some images at a time, in memory that is used again and again.

    Args:
        sums: The matrix that gives values at the points.
        m: From one tile to the next.
        tiles: How many there are down and across.
        most: For how many images there is to be place.
        channels: Of the images.
    """

    def __init__(self, sums: _Sums, m: int, tiles: tuple[int, int], most: int, channels: int) -> None:
        reach = int(sums.at.max()) // m
        self._held = np.zeros(((tiles[0] + reach) * m, m, tiles[1] + reach, channels), np.float32)
        self._lines = np.empty((_EDGE, self._held[0].size), np.float32)
        across = sums.at % m * (tiles[1] + reach) + sums.at // m
        self._sums = sums.at, read_only(across), sums.by
        self._out = np.empty(_EDGE * _EDGE * most * tiles[0] * tiles[1] * channels, np.float32)
        self._shape = *tiles, channels

    def of(self, images: Array, around: tuple[int, int]) -> Array:
        """Give the values of images' tiles, [36, n * tiles down * tiles across, channels], until the next call."""
        shape = _EDGE, _EDGE, len(images), *self._shape
        out = self._out[: math.prod(shape)].reshape(shape)
        # What lies beyond the tiles, if a caller wants few results, has no place in them.
        rows, m, columns, _ = self._held.shape
        images = np.ascontiguousarray(images[:, : rows - around[0], : columns * m - around[1]])
        _evaluate(read_only(images), around, self._held, self._lines, self._sums, out)
        return out.reshape(_EDGE * _EDGE, -1, shape[-1])


def _most(tiles: tuple[int, int], channels: int, count: int) -> int:
    """Give how many images are worked on at a time."""
    return max(min(_BLOCK_BYTES // (_EDGE * _EDGE * tiles[0] * tiles[1] * channels * 4), count), 1)


def _numbers(shape: tuple[int, int], m: int) -> tuple[int, int]:
    return -(-shape[0] // m), -(-shape[1] // m)


def convolved(images: Array, filters: Array, around: tuple[int, int], size: tuple[int, int]) -> Array:
    """Convolve images with filters, one element at a time in both directions.

    Args:
        images: float32 [n, height, width, channels].
        filters: float32 [edge, edge, channels, outputs]; the edge is 3 or 5.
        around: How many zeros are above and left of the images.
        size: Rows and columns of the result; beyond the images there are zeros.

    Returns:
        [n, rows, columns, outputs].
    """
    edge, _, channels, outputs = filters.shape
    steps, m = _steps(edge), _EDGE + 1 - edge
    across = np.matmul(steps.filters, filters.reshape(edge, edge, -1))
    at_points = np.matmul(steps.filters, across.reshape(edge, -1)).reshape(_EDGE * _EDGE, channels, outputs)
    tiles = _numbers(size, m)
    out = np.empty((len(images), *size, outputs), np.float32)
    most = _most(tiles, channels + outputs, len(images))

    def convolve(part: slice) -> None:
        source = _Tiles(steps.tiles, m, tiles, most, channels)
        lines = np.empty((m, _EDGE, tiles[1] * outputs), np.float32)
        strip = np.empty((tiles[1], outputs), np.float32)
        products = np.empty(_EDGE * _EDGE * most * tiles[0] * tiles[1] * outputs, np.float32)
        for at in range(part.start, part.stop, most):
            values = source.of(images[at : min(at + most, part.stop)], around)
            product = products[: values[..., 0].size * outputs].reshape(*values.shape[:2], outputs)
            np.matmul(values, at_points, out=product)
            by_tiles = product.reshape(_EDGE, _EDGE, -1, *tiles, outputs)
            _take_results(by_tiles, lines, strip, *steps.results, out[at : min(at + most, part.stop)])

    in_parts(convolve, len(images), out.size * channels * edge)
    return out


def filters_gradient(images: Array, gradient: Array, around: tuple[int, int], edge: int) -> Array:
    """Give the gradient of `convolved` at its filters.

    Args:
        images: float32 [n, height, width, channels].
        gradient: float32 [n, rows, columns, outputs], of the result.
        around: How many zeros are above and left of the images.
        edge: Of the filters: 3 or 5.

    Returns:
        [edge, edge, channels, outputs].
    """
    channels, outputs = images.shape[3], gradient.shape[3]
    steps, m = _steps(edge), _EDGE + 1 - edge
    tiles = _numbers(gradient.shape[1:3], m)
    most = _most(tiles, channels + outputs, len(images))
    #: Where a part begins -> its sum.
    totals: dict[int, Array] = {}

    def add_up(part: slice) -> None:
        source, target = (
            _Tiles(sums, m, tiles, most, size) for sums, size in ((steps.tiles, channels), (steps.gradients, outputs))
        )
        total = np.zeros((_EDGE * _EDGE, channels, outputs), np.float32)
        for at in range(part.start, part.stop, most):
            some = slice(at, min(at + most, part.stop))
            values = source.of(images[some], around)
            total += np.matmul(values.transpose(0, 2, 1), target.of(gradient[some], (0, 0)))
        totals[part.start] = total

    in_parts(add_up, len(images), gradient.size * channels * edge)
    first, *others = (totals[start] for start in sorted(totals))
    back = steps.filters.T
    down = np.matmul(back, sum(others, first).reshape(_EDGE, -1))
    filters: Array = np.matmul(back, down.reshape(edge, _EDGE, -1))
    return filters.reshape(edge, edge, channels, outputs)
