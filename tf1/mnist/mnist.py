"""MNIST as TensorFlow's tutorials read it: `read_data_sets` and what it gives.

Follows TensorFlow 1.15, contrib/learn/python/learn/datasets/mnist.py.

Layer: tf1. Threads: a DataSet is used by one thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globalstep.dtypes import as_dtype
from globalstep.tf1.graph.graph import get_default_graph
from globalstep.tf1.mnist.mnist_files import DEFAULT_SOURCE_URL, extract_images, extract_labels, find_files

__all__ = ["DataSet", "Datasets", "load_mnist", "read_data_sets"]

_Array = np.ndarray[Any, Any]


class DataSet:
    """Images and labels, given batch by batch.

    Args:
        images: uint8 [images, rows, columns, 1].
        labels: One for each image.
        fake_data: Give images of ones; `images` and `labels` are not used.
        one_hot: Whether the labels of fake data are rows.
        dtype: uint8 leaves images as they are; float32 scales them to 0 to 1.
        reshape: Make each image one row.
        seed: Of the order; default that of the graph, and without one a new order each time.

    Attributes:
        images: All of them.
        labels: All of them.
        num_examples: How many.
        epochs_completed: How often all of them were given.

    Raises:
        TypeError: If `dtype` is another one.
        ValueError: If there are not as many labels as images, or images have several channels.
    """

    def __init__(
        self,
        images: Any,
        labels: Any,
        fake_data: bool = False,
        one_hot: bool = False,
        dtype: Any = "float32",
        reshape: bool = True,
        seed: int | None = None,
    ) -> None:
        # numpy's global generator, as there: programs draw from it, too, and seed it.
        np.random.seed(get_default_graph().seed if seed is None else seed)
        kind = as_dtype(dtype).name
        if kind not in ("uint8", "float32"):
            raise TypeError(f"Invalid image dtype {kind!r}, expected uint8 or float32")
        self.one_hot = one_hot
        self._fake = fake_data
        self.epochs_completed = 0
        self._begin = 0
        if fake_data:
            self.num_examples = 10000
            self.images: Any = images
            self.labels: Any = labels
            return
        if len(images) != len(labels):
            raise ValueError(f"images.shape: {np.shape(images)} labels.shape: {np.shape(labels)}")
        self.num_examples = len(images)
        if reshape:
            if images.shape[3] != 1:
                raise ValueError(f"Images of {images.shape[3]} channels cannot be made rows: reshape=False.")
            images = images.reshape(len(images), images.shape[1] * images.shape[2])
        self.images = images if kind == "uint8" else np.multiply(images.astype(np.float32), np.float32(1 / 255))
        self.labels = labels

    def next_batch(self, batch_size: int, fake_data: bool = False, shuffle: bool = True) -> tuple[Any, Any]:
        """Give the next images and labels; what is left of an epoch is joined with the beginning of the next one.

        Args:
            batch_size: How many.
            fake_data: Give images of ones.
            shuffle: Give each epoch in an order of its own.

        Returns:
            Images and labels.
        """
        if fake_data or self._fake:
            label: Any = [1] + [0] * 9 if self.one_hot else 0
            return [[1] * 784 for _ in range(batch_size)], [label for _ in range(batch_size)]
        begin = self._begin
        if self.epochs_completed == 0 and begin == 0 and shuffle:
            self._shuffle()
        if begin + batch_size <= self.num_examples:
            self._begin = begin + batch_size
            return self.images[begin : self._begin], self.labels[begin : self._begin]
        self.epochs_completed += 1
        images, labels = self.images[begin:], self.labels[begin:]
        if shuffle:
            self._shuffle()
        self._begin = batch_size - len(images)
        return (
            np.concatenate((images, self.images[: self._begin])),
            np.concatenate((labels, self.labels[: self._begin])),
        )

    def _shuffle(self) -> None:
        order = np.arange(self.num_examples)
        np.random.shuffle(order)
        self.images, self.labels = self.images[order], self.labels[order]


class Datasets(NamedTuple):
    """The data sets for training, validation and testing."""

    train: Any
    validation: Any
    test: Any


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = "float32",
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str = DEFAULT_SOURCE_URL,
) -> Datasets:
    """Read MNIST from the files in a folder.

    Args:
        train_dir: The folder.
        fake_data: Give images of ones, and read no files.
        one_hot: Labels are rows of ten floats instead of numbers.
        dtype: uint8 or float32; the latter scales images to 0 to 1.
        reshape: Make each image one row of 784.
        validation_size: The first so many training images are the validation set.
        seed: Of the order; see DataSet.
        source_url: Where the files can be had, for the text of the error.

    Returns:
        Training, validation and test set.

    Raises:
        NotFoundError: If a file is not there; says how to get it.
        ValueError: If a file is none of MNIST's, or `validation_size` is more than there is.
    """
    options: dict[str, Any] = {"dtype": dtype, "reshape": reshape, "seed": seed}
    if fake_data:
        fake = [DataSet([], [], fake_data=True, one_hot=one_hot, dtype=dtype, seed=seed) for _ in range(3)]
        return Datasets(*fake)
    read: list[_Array] = []
    for position, path in enumerate(find_files(train_dir, source_url or DEFAULT_SOURCE_URL)):
        print("Extracting", path)
        with open(path, "rb") as file:
            read.append(extract_labels(file, one_hot=one_hot) if position % 2 else extract_images(file))
    images, labels, test_images, test_labels = read
    if not 0 <= validation_size <= len(images):
        raise ValueError(f"Validation size should be between 0 and {len(images)}. Received: {validation_size}.")
    return Datasets(
        train=DataSet(images[validation_size:], labels[validation_size:], **options),
        validation=DataSet(images[:validation_size], labels[:validation_size], **options),
        test=DataSet(test_images, test_labels, **options),
    )


def load_mnist(train_dir: str = "MNIST-data") -> Datasets:
    """Read MNIST with labels as numbers; see read_data_sets."""
    return read_data_sets(train_dir)
