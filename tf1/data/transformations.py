"""Transformations for `Dataset.apply`: `tf.data.experimental` and `tf.contrib.data`.

Follows TensorFlow 1.15, python/data/experimental/ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.data.elements import Pass, slices_of
from globalstep.tf1.data.pipeline import Pipeline
from globalstep.tf1.graph import nest

AUTOTUNE = -1

Transformation = Callable[[Pipeline], Pipeline]


def map_and_batch(
    map_func: Callable[..., Any], batch_size: Any, num_parallel_batches: Any = None, drop_remainder: bool = False,
    num_parallel_calls: Any = None,
) -> Transformation:  # fmt: skip
    """Give what `map` and then `batch` does.

    Args:
        map_func: See Dataset.map.
        batch_size: See Dataset.batch.
        num_parallel_batches: Accepted.
        drop_remainder: See Dataset.batch.
        num_parallel_calls: Accepted.
    """
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
    """Give what `interleave` does.

    Args:
        map_func: See Dataset.interleave.
        cycle_length: See Dataset.interleave.
        block_length: See Dataset.interleave.
        sloppy: Accepted; the order is that of `interleave`.
        buffer_output_elements: Accepted.
        prefetch_input_elements: Accepted.
    """
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
