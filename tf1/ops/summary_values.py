"""Values of summaries: numbers, histograms and images as `Summary.Value` messages.

Pure functions from arrays to messages; the nodes around them are in `summary_ops`.

Layer: tf1. The protocol buffers are those of the tensorboard package.
"""

from __future__ import annotations

import functools
import io
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError
from globalstep.files.tensorboard_protos import HistogramProto, Summary

Array = npt.NDArray[Any]

#: TensorFlow's color for a pixel whose value is not finite: red, or white in a picture without colors.
_BAD_COLOR = np.array([255, 0, 0, 255], dtype=np.uint8)
#: Below this an image counts as black, as in TensorFlow's kernel.
_ZERO_THRESHOLD = 1e-6
_PNG_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def scalar_values(tags: Array, values: Array) -> list[Summary.Value]:
    """Give one scalar for each tag.

    Args:
        tags: Strings, any shape.
        values: Numbers, of the same shape.

    Raises:
        InvalidArgumentError: If the shapes differ.
    """
    if tags.shape != values.shape:
        single = f" (tag '{_text(tags.reshape(-1)[0])}')" if tags.size == 1 else ""
        raise InvalidArgumentError(
            f"tags and values not the same shape: {list(tags.shape)} != {list(values.shape)}{single}"
        )
    return [
        Summary.Value(tag=_text(tag), simple_value=float(value))
        for tag, value in zip(tags.reshape(-1), values.reshape(-1), strict=True)
    ]


@functools.cache
def bucket_limits() -> npt.NDArray[np.float64]:
    """Give the upper limits of TensorFlow's histogram buckets.

    Returns:
        float64 [1551]: they grow by 10% from 1e-12 to 1e20, the same below zero, with zero and the
        largest finite numbers. Bucket i holds the values v with limit[i-1] <= v < limit[i].

    Source: TensorFlow, core/lib/histogram/histogram.cc.
    """
    positive = []
    limit = 1e-12
    while limit < 1e20:
        positive.append(limit)
        limit *= 1.1
    positive.append(sys.float_info.max)
    return np.array([*(-value for value in reversed(positive)), 0.0, *positive])


def histogram_proto(values: Array, name: str, error: type[Exception] = InvalidArgumentError) -> HistogramProto:
    """Count values into TensorFlow's buckets.

    Args:
        values: Numbers, any shape.
        name: Whose they are, for the message.
        error: What to raise for a value that is not finite.

    Returns:
        The histogram, in which a run of empty buckets is one bucket.

    Raises:
        InvalidArgumentError: Or `error`, if a value is not finite.

    >>> histogram = histogram_proto(np.array([1.0, 1.0, 3.0]), "w")
    >>> histogram.num, histogram.min, histogram.max, histogram.sum, sum(histogram.bucket)
    (3.0, 1.0, 3.0, 5.0, 3.0)
    """
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    if not np.isfinite(flat).all():
        what = "Nan" if np.isnan(flat).any() else "Infinity"
        raise error(f"{what} in summary histogram for: {name}")
    limits = bucket_limits()
    # A value equal to the last limit has no bucket above it.
    buckets = np.minimum(np.searchsorted(limits, flat, side="right"), len(limits) - 1)
    counts = np.bincount(buckets, minlength=len(limits)).astype(np.float64)
    # Of a run of empty buckets only the last is kept, so its limit is where the next one begins.
    listed = (counts > 0) | np.append(counts[1:] > 0, True)
    return HistogramProto(
        min=float(flat.min()) if flat.size else sys.float_info.max,
        max=float(flat.max()) if flat.size else -sys.float_info.max,
        num=float(flat.size),
        sum=float(flat.sum()),
        sum_squares=float(np.dot(flat, flat)),
        bucket_limit=limits[listed].tolist(),
        bucket=counts[listed].tolist(),
    )


def normalize_image(image: Array) -> npt.NDArray[np.uint8]:
    """Bring one picture to 0..255.

    Non-negative values are rescaled so that the largest is 255. With a negative one among them, 0.0
    goes to 127 and the values are rescaled so that the smallest is 0 or the largest 255, whichever
    comes first. Pixels with a value that is not finite become red, and do not count.

    Args:
        image: uint8 (taken as it is) or float, [height, width, channels].

    Returns:
        uint8 [height, width, channels].

    Source: documentation of TensorFlow's `image_summary`; its kernel puts 0.0 at 128 and never reaches
    0, one level away (docs/summaries.md).

    >>> normalize_image(np.array([[[0.0], [0.5], [1.0]]])).ravel().tolist()
    [0, 127, 255]
    >>> normalize_image(np.array([[[-1.0], [0.0], [0.5]]])).ravel().tolist()
    [0, 127, 190]
    """
    if image.dtype == np.uint8:
        return image
    pixels = np.asarray(image, dtype=np.float64)
    finite = np.isfinite(pixels).all(axis=-1)
    good = pixels[finite]
    low, high = (float(good.min()), float(good.max())) if good.size else (0.0, 0.0)
    if max(abs(low), abs(high)) < _ZERO_THRESHOLD:
        scale, offset = 0.0, 127.0 if low < 0 else 0.0
    elif low < 0:
        offset = 127.0
        scale = min(127.0 / -low, 128.0 / high if high > 0 else np.inf)
    else:
        scale, offset = 255.0 / high, 0.0
    result = np.empty(pixels.shape, dtype=np.uint8)
    # A rounding error just below a whole number must not cost a level.
    result[finite] = np.clip(np.floor(good * scale + offset + 1e-9), 0, 255).astype(np.uint8)
    result[~finite] = _BAD_COLOR[: pixels.shape[-1]]
    return result


def image_values(tag: str, images: Array, max_outputs: int) -> list[Summary.Value]:
    """Give the first pictures of a batch.

    Args:
        tag: Begins the tags: tag/image with `max_outputs` 1, else tag/image/0, tag/image/1, ...
        images: uint8 or float [batch, height, width, channels] with 1, 3 or 4 channels.
        max_outputs: How many pictures at most.

    Raises:
        InvalidArgumentError: If `images` has another shape.
    """
    if images.ndim != 4 or images.shape[-1] not in _PNG_MODES:
        raise InvalidArgumentError(
            f"Tensor must be 4-D with last dim 1, 3, or 4, not {list(images.shape)} (tag '{tag}')"
        )
    values = []
    for index, image in enumerate(images[:max_outputs]):
        height, width, channels = image.shape
        value = Summary.Value(tag=f"{tag}/image/{index}" if max_outputs > 1 else f"{tag}/image")
        value.image.height, value.image.width, value.image.colorspace = height, width, channels
        value.image.encoded_image_string = _png(normalize_image(image))
        values.append(value)
    return values


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    # Pillow takes a tenth of a second to import, and most programs never show a picture.
    from PIL import Image

    pixels = np.ascontiguousarray(image[:, :, 0] if image.shape[-1] == 1 else image)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
