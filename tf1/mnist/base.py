"""Data sets of tf.contrib.learn in CSV files.

Follows TensorFlow 1.15, contrib/learn/python/learn/datasets/base.py.
"""

from __future__ import annotations

import csv
import os
from typing import Any, NamedTuple

import numpy as np

from globalstep.errors import NotFoundError
from globalstep.tf1.mnist.mnist import Datasets, load_mnist

__all__ = ["Dataset", "Datasets", "load_csv_with_header", "load_csv_without_header", "load_dataset", "maybe_download"]


class Dataset(NamedTuple):
    """Features and targets."""

    data: Any
    target: Any


def load_csv_with_header(filename: str, target_dtype: Any, features_dtype: Any, target_column: int = -1) -> Dataset:
    """Read a CSV file whose first line says how many rows and features it has.

    Args:
        filename: The file.
        target_dtype: Of the targets.
        features_dtype: Of the features.
        target_column: Which column is the target.
    """
    with open(filename, newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        samples, features = int(header[0]), int(header[1])
        return _dataset([row for row in rows if row], target_dtype, features_dtype, target_column, (samples, features))


def load_csv_without_header(filename: str, target_dtype: Any, features_dtype: Any, target_column: int = -1) -> Dataset:
    """Read a CSV file of nothing but rows; arguments as of load_csv_with_header."""
    with open(filename, newline="") as file:
        return _dataset([row for row in csv.reader(file) if row], target_dtype, features_dtype, target_column, None)


def maybe_download(filename: str, work_directory: str, source_url: str) -> str:
    """Give the path of a file that is there.

    Args:
        filename: Its name.
        work_directory: Its folder.
        source_url: Where it can be had, for the text of the error.

    Raises:
        NotFoundError: If it is not there; says how to get it.
    """
    path = os.path.join(work_directory, filename)
    if not os.path.exists(path):
        raise NotFoundError(
            f"{os.path.abspath(path)} is not there. globalstep downloads nothing by itself; get it:\n"
            f"  mkdir -p {os.path.abspath(work_directory)}\n  curl -o {os.path.abspath(path)} {source_url}"
        )
    return path


def load_dataset(name: str, size: str = "small", test_with_fake_data: bool = False) -> Any:
    """Read a data set by its name; here there is "mnist", from the folder MNIST-data.

    Args:
        name: Its name.
        size: Accepted as in TensorFlow.
        test_with_fake_data: Accepted as in TensorFlow.

    Raises:
        ValueError: If there is none of that name.
    """
    if name != "mnist":
        raise ValueError(f"Name of dataset is not found: {name}; here there is mnist. sklearn.datasets has others.")
    return load_mnist()


def _dataset(
    rows: list[list[str]], target_dtype: Any, features_dtype: Any, target_column: int, sizes: tuple[int, int] | None
) -> Dataset:
    target = np.array([row.pop(target_column) for row in rows], dtype=target_dtype)
    data = np.array(rows, dtype=features_dtype)
    if sizes is not None and data.shape != sizes:
        raise ValueError(f"The first line says {sizes[0]} rows of {sizes[1]} features, but there are {data.shape}.")
    return Dataset(data, target)
