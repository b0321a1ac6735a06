"""MNIST's files: images and labels in the IDX format, compressed or not.

Follows TensorFlow 1.15, contrib/learn/python/learn/datasets/mnist.py, but for the download: globalstep reads files
that are there.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import IO, Any

import numpy as np

from globalstep.errors import NotFoundError

__all__ = ["DEFAULT_SOURCE_URL", "FILES", "dense_to_one_hot", "extract_images", "extract_labels", "find_files"]

#: Where the files were downloaded from by TensorFlow.
DEFAULT_SOURCE_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
#: Images and labels to train with, and to test with.
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)

_IMAGES, _LABELS = 2051, 2049


def find_files(folder: str, source_url: str = DEFAULT_SOURCE_URL) -> list[Path]:
    """Give the paths of FILES in a folder; each may also be there uncompressed.

    Raises:
        NotFoundError: If one is missing; says how to get them.
    """
    paths, missing = [], []
    for name in FILES:
        packed = Path(folder) / name
        there = next((path for path in (packed, packed.with_suffix("")) if path.is_file()), None)
        if there is None:
            missing.append(name)
        else:
            paths.append(there)
    if missing:
        place = os.path.abspath(folder)
        commands = "\n".join(f"  curl -o {place}/{name} {source_url}{name}" for name in missing)
        raise NotFoundError(
            f"{place} lacks {', '.join(missing)}. globalstep downloads nothing by itself; get them, or copy them from "
            f"where you have them:\n  mkdir -p {place}\n{commands}"
        )
    return paths


def extract_images(f: IO[bytes]) -> np.ndarray[Any, Any]:
    """Read the images of an IDX file.

    Args:
        f: The file, compressed or not.

    Returns:
        uint8 [images, rows, columns, 1].

    Raises:
        ValueError: If it is no such file, or is cut short.
    """
    content, name = _content(f)
    number, rows, columns = _header(content, name, _IMAGES, "image", 3)
    return _body(content, name, 16, number * rows * columns).reshape(number, rows, columns, 1)


def extract_labels(f: IO[bytes], one_hot: bool = False, num_classes: int = 10) -> np.ndarray[Any, Any]:
    """Read the labels of an IDX file.

    Args:
        f: The file, compressed or not.
        one_hot: Give a row of `num_classes` floats for each, 1 at its place.
        num_classes: How many there are.

    Returns:
        uint8 [labels], or float64 [labels, num_classes].

    Raises:
        ValueError: If it is no such file, or is cut short.
    """
    content, name = _content(f)
    (number,) = _header(content, name, _LABELS, "label", 1)
    labels = _body(content, name, 8, number)
    return dense_to_one_hot(labels, num_classes) if one_hot else labels


def dense_to_one_hot(labels_dense: np.ndarray[Any, Any], num_classes: int) -> np.ndarray[Any, Any]:
    """Give for each label a row of floats, 1 at its place.

    >>> dense_to_one_hot(np.array([1, 0]), 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    rows: np.ndarray[Any, Any] = np.eye(num_classes)[np.asarray(labels_dense).ravel()]
    return rows


def _content(file: IO[bytes]) -> tuple[bytes, str]:
    content, name = file.read(), str(getattr(file, "name", "the file"))
    return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content), name


def _header(content: bytes, name: str, magic: int, kind: str, sizes: int) -> list[int]:
    words = np.frombuffer(content[: 4 * (1 + sizes)], ">u4") if len(content) >= 4 * (1 + sizes) else np.zeros(1, ">u4")
    if words[0] != magic:
        raise ValueError(f"Invalid magic number {int(words[0])} in MNIST {kind} file: {name}")
    return [int(word) for word in words[1:]]


def _body(content: bytes, name: str, begin: int, size: int) -> np.ndarray[Any, Any]:
    if len(content) < begin + size:
        raise ValueError(f"{name} is cut short: {len(content)} bytes of {begin + size}; get it anew")
    return np.frombuffer(content, np.uint8, size, begin).copy()
