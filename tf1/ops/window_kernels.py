"""Compiled loops for the gradient of the largest values of windows of images.

A window is looked at where it lies, channel by channel. numpy, which does each place in a window for all of them, takes
three times as long; for the largest values themselves it is as quick.

Layer: tf1, below `globalstep.tf1.ops.sliding_windows`. The first call imports numba. Threads: functions may be called
at the same time for different images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.runtime.kernels import kernel, read_only

Array = npt.NDArray[Any]
#: Two numbers, down and to the right.
Two = tuple[int, int]


@kernel
def _share(images: Array, largest: Array, gradient: Array, numbers: Any, held: Array, out: Array) -> None:
    size, strides, before, nothing, one = numbers
    counts, shares = held[0], held[1]
    for image in range(largest.shape[0]):
        for row in range(largest.shape[1]):
            for column in range(largest.shape[2]):
                most, whole = largest[image, row, column], gradient[image, row, column]
                top, left = row * strides[0] - before[0], column * strides[1] - before[1]
                down = range(max(top, 0), min(top + size[0], images.shape[1]))
                right = range(max(left, 0), min(left + size[1], images.shape[2]))
                for channel in range(counts.size):
                    counts[channel] = nothing
                for y in down:
                    for x in right:
                        values = images[image, y, x]
                        for channel in range(counts.size):
                            counts[channel] += one if values[channel] == most[channel] else nothing
                for channel in range(counts.size):
                    shares[channel] = whole[channel] / counts[channel]
                for y in down:
                    for x in right:
                        values, to = images[image, y, x], out[image, y, x]
                        for channel in range(counts.size):
                            to[channel] += shares[channel] * (one if values[channel] == most[channel] else nothing)


def share(images: Array, largest: Array, gradient: Array, windows: tuple[Two, Two, Two], out: Array) -> None:
    """Add the gradient of largest values to that of the images; equal values of a window share evenly.

    Args:
        images: float32 or float64 [n, height, width, channels].
        largest: [n, rows, columns, channels] of the same dtype.
        gradient: As `largest`.
        windows: Their size, strides, and how far the first one reaches over the image's edges.
        out: As `images`.
    """
    held = np.empty((2, images.shape[3]), images.dtype)
    arrays = (read_only(np.ascontiguousarray(array)) for array in (images, largest, gradient))
    _share(*arrays, (*windows, images.dtype.type(0), images.dtype.type(1)), held, out)
