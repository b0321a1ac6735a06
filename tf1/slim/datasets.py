"""Slim's data sets: TFRecord files, how to decode an Example of theirs, and queues that several readers fill.

Layer: tf1. Source: TensorFlow 1.15 `contrib/slim/python/slim/data`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from globalstep.dtypes import DTypeLike
from globalstep.tf1 import gfile
from globalstep.tf1.graph.graph import Node, name_scope
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.images.coding import decode_image
from globalstep.tf1.inputs.inputs import fullness, string_input_producer
from globalstep.tf1.inputs.queue_runner import QueueRunner, add_queue_runner
from globalstep.tf1.inputs.queues import FIFOQueue, RandomShuffleQueue
from globalstep.tf1.loops.functional import map_fn
from globalstep.tf1.ops import array_ops, conditional_ops, joining_ops, math_ops, parsing_ops, sparse_ops, summary_ops

__all__ = [
    "BoundingBox", "DataDecoder", "DataProvider", "Dataset", "DatasetDataProvider", "Image", "ItemHandler",
    "ItemHandlerCallback", "TFExampleDecoder", "Tensor", "get_data_files",
    "parallel_read",
]  # fmt: skip


class Dataset:
    """What there is to know of a data set; all arguments, and further ones, are attributes."""

    def __init__(
        self, data_sources: Any, reader: Any, decoder: Any, num_samples: int | None, items_to_descriptions: Any,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self.__dict__.update(
            kwargs, data_sources=data_sources, reader=reader, decoder=decoder, num_samples=num_samples,
            items_to_descriptions=items_to_descriptions,
        )  # fmt: skip


class DataProvider:
    """Nodes by the names of items."""

    def __init__(self, items_to_tensors: Mapping[str, Any], num_samples: int | None) -> None:
        self._items_to_tensors = items_to_tensors
        self._num_samples = num_samples

    def get(self, items: Sequence[str]) -> list[Any]:
        """Give the nodes of some items.

        Raises:
            ValueError: For an item that there is not.
        """
        for item in items:
            if item not in self._items_to_tensors:
                raise ValueError(f"Item [{item}] is invalid. Valid entries include: {self.list_items()}")
        return [self._items_to_tensors[item] for item in items]

    def list_items(self) -> Any:
        """Give the names of all items."""
        return self._items_to_tensors.keys()

    def num_samples(self) -> int | None:
        """Give the number of samples, or None where it is unknown."""
        return self._num_samples


class DatasetDataProvider(DataProvider):
    """Reads a Dataset by several readers, and gives the items of one sample and the record's key."""

    def __init__(
        self, dataset: Any, num_readers: int = 1, reader_kwargs: Any = None, shuffle: bool = True,
        num_epochs: int | None = None, common_queue_capacity: int = 256, common_queue_min: int = 128,
        record_key: str = "record_key", seed: int | None = None, scope: str | None = None,
    ) -> None:  # fmt: skip
        key, data = parallel_read(
            dataset.data_sources, dataset.reader, num_epochs, num_readers, reader_kwargs, shuffle,
            capacity=common_queue_capacity, min_after_dequeue=common_queue_min, seed=seed, scope=scope,
        )  # fmt: skip
        items = dataset.decoder.list_items()
        if record_key in items:
            raise ValueError(f"The item name used for `record_key` cannot also be used for a dataset item: {items}")
        nodes = dict(zip(items, dataset.decoder.decode(data, items), strict=True))
        super().__init__({**nodes, record_key: key}, dataset.num_samples)


def parallel_read(
    data_sources: Any, reader_class: Any, num_epochs: int | None = None, num_readers: int = 4,
    reader_kwargs: Any = None, shuffle: bool = True, dtypes: Any = None, capacity: int = 256,
    min_after_dequeue: int = 128, seed: int | None = None, scope: str | None = None,
) -> Any:  # fmt: skip
    """Give the key and the record that come next of files, which several readers read at once."""
    files = get_data_files(data_sources)
    with name_scope(scope, "parallel_read"):
        names = string_input_producer(files, num_epochs=num_epochs, shuffle=shuffle, seed=seed, name="filenames")
        options: dict[str, Any] = {"dtypes": dtypes or ["string", "string"], "name": "common_queue"}
        if shuffle:
            options.update(min_after_dequeue=min_after_dequeue, seed=seed)
        queue = (RandomShuffleQueue if shuffle else FIFOQueue)(capacity, **options)
        summary_ops.scalar(f"fraction_of_{capacity}_full", fullness(queue, capacity))
        readers = [reader_class(**(reader_kwargs or {})) for _ in range(num_readers)]
        add_queue_runner(QueueRunner(queue, [queue.enqueue(reader.read(names)) for reader in readers]))
        return queue.dequeue()


def get_data_files(data_sources: Any) -> list[str]:
    """Give the files that some paths and patterns mean; none is a ValueError."""
    if isinstance(data_sources, (list, tuple)):
        files = [file for source in data_sources for file in get_data_files(source)]
    else:
        files = gfile.Glob(data_sources) if any(mark in data_sources for mark in "*?[") else [data_sources]
    if not files:
        raise ValueError(f"No data files found in {data_sources}")
    return files


class DataDecoder:
    """Gives the items of a record, by `decode(data, items)`, and their names, by `list_items()`."""


class TFExampleDecoder(DataDecoder):
    """Decodes an Example: features by their keys, and items that ItemHandlers make of them."""

    def __init__(self, keys_to_features: Mapping[str, Any], items_to_handlers: Mapping[str, ItemHandler]) -> None:
        self._keys_to_features = keys_to_features
        self._items_to_handlers = items_to_handlers

    def list_items(self) -> list[str]:
        """Give the names of all items."""
        return list(self._items_to_handlers)

    def decode(self, serialized_example: Any, items: Any = None) -> list[Any]:
        """Give the nodes of some items, by default all."""
        example = parsing_ops.parse_single_example(serialized_example, self._keys_to_features)
        handlers = [self._items_to_handlers[item] for item in items or self._items_to_handlers]
        return [one.tensors_to_item({key: example[key] for key in one.keys}) for one in handlers]


class ItemHandler:
    """Makes an item of the features of some keys, by `tensors_to_item(keys_to_tensors)`."""

    tensors_to_item: Callable[..., Any]

    def __init__(self, keys: Any) -> None:
        self.keys = list(keys) if isinstance(keys, (list, tuple)) else [keys]


class ItemHandlerCallback(ItemHandler):
    """Makes an item by a function of the features."""

    def __init__(self, keys: Any, func: Callable[[Mapping[str, Any]], Any]) -> None:
        super().__init__(keys)
        self.tensors_to_item = func


class BoundingBox(ItemHandler):
    """Makes boxes [number, 4] of the features of their sides."""

    def __init__(self, keys: Sequence[str] | None = None, prefix: str = "") -> None:
        names = ["ymin", "xmin", "ymax", "xmax"] if keys is None else keys
        if len(names) != 4:
            raise ValueError(f"BoundingBox expects 4 keys but got {len(names)}")
        super().__init__([prefix + name for name in names])

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Node:
        """Give the boxes."""
        sides = [keys_to_tensors[key] for key in self.keys]
        flat = [side.values if isinstance(side, SparseTensor) else side for side in sides]
        return array_ops.transpose(joining_ops.concat([array_ops.expand_dims(side, 0) for side in flat], 0))


class Tensor(ItemHandler):
    """Gives a feature, dense, in a shape that is given or that other features hold."""

    def __init__(self, tensor_key: str, shape_keys: Any = None, shape: Any = None, default_value: Any = 0) -> None:
        if shape_keys and shape is not None:
            raise ValueError("Cannot specify both shape_keys and shape parameters.")
        sizes = shape_keys if isinstance(shape_keys, list) else [shape_keys] if shape_keys else []
        super().__init__([tensor_key, *sizes])
        self._shape = shape
        self._default_value = default_value

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """Give the feature."""
        value, *sizes = (keys_to_tensors[key] for key in self.keys)
        shape = self._shape
        if sizes:
            dense = [parsing_ops.sparse_tensor_to_dense(one) if isinstance(one, SparseTensor) else one for one in sizes]
            shape = array_ops.reshape(joining_ops.stack(dense), [-1])
        if isinstance(value, SparseTensor):
            value = value if shape is None else sparse_ops.sparse_reshape(value, shape)
            return parsing_ops.sparse_tensor_to_dense(value, self._default_value)
        return value if shape is None else array_ops.reshape(value, shape)


class Image(ItemHandler):
    """Decodes a picture of the formats JPEG, PNG, GIF, BMP and "raw"."""

    def __init__(
        self, image_key: str | None = None, format_key: str | None = None, shape: Any = None, channels: int = 3,
        dtype: DTypeLike = "uint8", repeated: bool = False, dct_method: str = "",
    ) -> None:  # fmt: skip
        super().__init__([image_key or "image/encoded", format_key or "image/format"])
        self._shape, self._channels, self._dtype, self._repeated = shape, channels, dtype, repeated

    def tensors_to_item(self, keys_to_tensors: Mapping[str, Any]) -> Any:
        """Give the picture, or pictures if they are repeated."""
        contents, kind = (keys_to_tensors[key] for key in self.keys)
        if not self._repeated:
            return self._decode(contents, kind)
        return map_fn(lambda one: self._decode(one, kind), contents, dtype=self._dtype)

    def _decode(self, contents: Any, kind: Any) -> Any:
        picture = conditional_ops.cond(
            math_ops.logical_or(math_ops.equal(kind, "raw"), math_ops.equal(kind, "RAW")),
            lambda: parsing_ops.decode_raw(contents, self._dtype),
            lambda: math_ops.cast(decode_image(contents, self._channels), self._dtype),
        )
        picture.set_shape([None, None, self._channels])
        return array_ops.reshape(picture, self._shape) if self._shape is not None else picture
