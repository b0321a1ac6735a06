"""Transformations for `Dataset.apply`: `tf.data.experimental` and `tf.contrib.data`.

Follows TensorFlow 1.15, python/data/experimental/ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from globalstep.dtypes import as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.data.elements import Component, Pass, slices_of
from globalstep.tf1.data.functions import ElementFunction
from globalstep.tf1.data.pipeline import DatasetFunction, Pipeline
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import math_ops, reduction_ops
from globalstep.tf1.ops.constant_ops import constant

AUTOTUNE = -1

Transformation = Callable[[Pipeline], Pipeline]


def map_and_batch(
    map_func: Callable[..., Any], batch_size: Any, num_parallel_batches: Any = None, drop_remainder: bool = False,
    num_parallel_calls: Any = None,
) -> Transformation:  # fmt: skip
    """Give what `map` and then `batch` does; see Dataset. The numbers of parallel ones are accepted."""
    return lambda dataset: dataset.map(map_func).batch(batch_size, drop_remainder)


def shuffle_and_repeat(buffer_size: Any, count: Any = None, seed: int | None = None) -> Transformation:
    """Give what `shuffle` and then `repeat` does; see Dataset."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def batch_and_drop_remainder(batch_size: Any) -> Transformation:
    """Give what `batch(batch_size, drop_remainder=True)` does."""
    return lambda dataset: dataset.batch(batch_size, True)


def parallel_interleave(
    map_func: Callable[..., Any], cycle_length: Any, block_length: Any = 1, sloppy: bool = False,
    buffer_output_elements: Any = None, prefetch_input_elements: Any = None,
) -> Transformation:  # fmt: skip
    """Give what `interleave` does, in its order; see Dataset. Further arguments are accepted."""
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def unbatch() -> Transformation:
    """Give the slices of axis 0 of each element as elements."""

    def slices(dataset: Pipeline) -> Pipeline:
        def each(run: Pass) -> Any:
            for values in dataset.elements(run):
                yield from zip(*map(slices_of, values), strict=True)

        element = nest.map_structure(lambda one: one.sliced(), dataset.element)
        return Pipeline(element, dataset.captures, each, dataset.control_inputs)

    return slices


def ignore_errors() -> Transformation:
    """Leave out elements that a `map` right before failed to make."""

    def good(dataset: Pipeline) -> Pipeline:
        def each(run: Pass) -> Any:
            source = dataset.elements(run)
            while True:
                try:
                    values = next(source)
                except StopIteration:
                    return
                except Exception:
                    continue
                yield values

        return Pipeline(dataset.element, dataset.captures, each, dataset.control_inputs)

    return good


def group_by_window(
    key_func: Callable[..., Any], reduce_func: Callable[[Any, Any], Any], window_size: Any = None,
    window_size_func: Callable[[Any], Any] | None = None,
) -> Transformation:  # fmt: skip
    """Collect elements with the same key, and give the elements of Datasets that a function makes of so many.

    Args:
        key_func: Gives the key of an element, an int64 scalar.
        reduce_func: Makes a Dataset of a key and the Dataset of its elements.
        window_size: How many elements it gets; fewer at the end.
        window_size_func: Gives that for a key.

    Raises:
        ValueError: Unless one of `window_size` and `window_size_func` is given.
        InvalidArgumentError: When run, for a size that is not positive.
    """
    if (window_size is None) == (window_size_func is None):
        raise ValueError("Must pass either window_size or window_size_func.")

    def grouped(dataset: Pipeline) -> Pipeline:
        mark = object()
        window = Pipeline(dataset.element, (), lambda run: iter(run.memory[mark]))
        of_key = Component(as_dtype("int64"), TensorShape(()))
        key_of = ElementFunction(key_func, dataset.element, _number)
        size_of = ElementFunction(window_size_func or (lambda key: window_size), of_key, _number)
        reduced = DatasetFunction(lambda key: reduce_func(key, window), of_key, "reduce_func")

        def each(run: Pass) -> Any:
            held: dict[int, list[Any]] = {}
            for values in dataset.elements(run):
                (key,) = key_of.evaluate(run, values)
                (size,) = size_of.evaluate(run, (key,))
                if size <= 0:
                    raise InvalidArgumentError(f"Window size must be greater than zero, but got {size}.")
                held.setdefault(int(key), []).append(values)
                if len(held[int(key)]) >= size:
                    yield from reduced.opened(run, (key,), {mark: held.pop(int(key))})
            for number in sorted(held):
                yield from reduced.opened(run, (as_dtype("int64").as_numpy_dtype(number),), {mark: held[number]})

        parts: list[Any] = [dataset, key_of, size_of, reduced]
        captures = [node for part in parts for node in part.captures]
        return Pipeline(reduced.returned.element, captures, each, [n for part in parts for n in part.control_inputs])

    return grouped


def bucket_by_sequence_length(
    element_length_func: Callable[..., Any], bucket_boundaries: Sequence[int], bucket_batch_sizes: Sequence[int],
    padded_shapes: Any = None, padding_values: Any = None, pad_to_bucket_boundary: bool = False,
    no_padding: bool = False, drop_remainder: bool = False,
) -> Transformation:  # fmt: skip
    """Batch elements of about the same length; further arguments are those of Dataset.padded_batch.

    Args:
        element_length_func: Gives the length of an element.
        bucket_boundaries: The lengths at which the buckets but the first begin.
        bucket_batch_sizes: Elements in a batch, of each bucket.
        padded_shapes: Default the shapes of the elements.
        padding_values: Of each component.
        pad_to_bucket_boundary: Must be False.
        no_padding: Whether all elements of a bucket have one shape.
        drop_remainder: Whether to leave out smaller batches.

    Raises:
        ValueError: Unless there is one size more than boundaries; if `pad_to_bucket_boundary`.
    """
    if pad_to_bucket_boundary:
        raise ValueError("pad_to_bucket_boundary must be False: gs.data pads to the longest element of a batch.")
    if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
        raise ValueError("len(bucket_batch_sizes) must equal len(bucket_boundaries) + 1")

    def bucket_of(*element: Any) -> Any:
        length = math_ops.cast(as_node(element_length_func(*element)), "int64")
        reached = math_ops.greater_equal(length, constant(list(bucket_boundaries), "int64"))
        return reduction_ops.reduce_sum(math_ops.cast(reached, "int64"))

    def size_of(bucket: Any) -> Any:
        return constant(list(bucket_batch_sizes), "int64")[bucket]

    def batched(bucket: Any, window: Any) -> Any:
        if no_padding:
            return window.batch(size_of(bucket), drop_remainder)
        shapes = window.output_shapes if padded_shapes is None else padded_shapes
        return window.padded_batch(size_of(bucket), shapes, padding_values, drop_remainder)

    return group_by_window(bucket_of, batched, window_size_func=size_of)


def _number(value: Any) -> tuple[Any, list[Any]]:
    return value, [math_ops.cast(as_node(value), "int64")]
