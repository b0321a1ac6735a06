"""Dataset: a pipeline of elements, built in the graph and run in Python, element by element.

Follows TensorFlow 1.15, python/data/ops/dataset_ops.py. A Dataset holds no elements: an iterator runs it, as often as
it is initialized. Nothing runs ahead of what is asked for.

Layer: tf1. Threads: a Dataset is not changed by use.
"""

from __future__ import annotations

import builtins
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.data import sources, stages
from globalstep.tf1.data.elements import (
    Make,
    Pass,
    Structured,
    Values,
    component_of,
    components,
    padded,
    shapes_like,
    stacked,
)
from globalstep.tf1.data.functions import ElementFunction
from globalstep.tf1.data.iterators import Iterator
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node

_AUTOTUNED_CYCLE = 2


class Pipeline(Structured):
    """See the module's text. `from_tensor_slices` and its like begin a pipeline, and so do the Datasets of files.

    Args:
        element: A nest of Component.
        captures: The nodes whose values it needs.
        make: Iterates over elements, each a tuple of its components' values.
        control_inputs: What must have run before.

    >>> import globalstep as gs
    >>> numbers = gs.data.Dataset.range(5).map(lambda x: x * x).batch(2)
    >>> following = numbers.make_one_shot_iterator().get_next()
    >>> with gs.Session() as sess:
    ...     print(sess.run(following), sess.run(following))
    [0 1] [4 9]
    """

    def __init__(self, element: Any, captures: Sequence[Node], make: Make, control_inputs: Sequence[Node] = ()) -> None:
        super().__init__(element)
        self.captures = tuple(dict.fromkeys(captures))
        self.control_inputs = tuple(dict.fromkeys(control_inputs))
        self.elements = make

    @staticmethod
    def from_tensors(tensors: Any) -> Pipeline:
        """Give a Dataset of one element: a nest of arrays or nodes, in which a list is one array."""
        return Pipeline(*sources.from_tensors(tensors))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Pipeline:
        """Give a Dataset of the slices of axis 0.

        Args:
            tensors: A nest of arrays or nodes with equal first axes; a list is one array.

        Raises:
            ValueError: If one is a scalar, or the axes are not equal.
        """
        return Pipeline(*sources.from_tensor_slices(tensors))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any], output_types: Any, output_shapes: Any = None, args: Sequence[Any] = ()
    ) -> Pipeline:
        """Give a Dataset of what a generator yields; it is called anew for each repetition.

        Args:
            generator: Gives an iterator, in the process that runs the session.
            output_types: A nest of dtypes.
            output_shapes: A nest of static shapes like it; default unknown ones.
            args: Arrays or nodes, whose values `generator` is called with.

        Raises:
            TypeError: If it cannot be called.
        """
        return Pipeline(*sources.from_generator(generator, output_types, output_shapes, args))

    @staticmethod
    def range(*args: Any) -> Pipeline:
        """Give a Dataset of int64 numbers; arguments are those of Python's `range`, numbers or int64 nodes."""
        return Pipeline(*sources.numbers(*args))

    @staticmethod
    def zip(datasets: Any) -> Pipeline:
        """Give a Dataset of elements that have one element of each of several Datasets; the shortest ends it.

        Args:
            datasets: A tuple or dict of Datasets, or of tuples and dicts of them.

        Raises:
            TypeError: If it is a list, or something in it is no Dataset.
        """
        parts = nest.flatten(datasets)
        if isinstance(datasets, list) or not all(isinstance(part, Pipeline) for part in parts):
            raise TypeError(f"The argument to `Dataset.zip()` must be a tuple or dict of Datasets, not {datasets!r}.")
        return Pipeline(
            nest.pack_sequence_as(datasets, [part.element for part in parts]),
            [node for part in parts for node in part.captures],
            lambda run: stages.zipped([part.elements(run) for part in parts]),
            [node for part in parts for node in part.control_inputs],
        )

    @staticmethod
    def list_files(file_pattern: Any, shuffle: bool | None = None, seed: int | None = None) -> Pipeline:
        """Give a Dataset of the names of files.

        Args:
            file_pattern: One pattern such as ``data/*.txt``, or several.
            shuffle: Whether in random order, a new one in each repetition; default True.
            seed: Of that order.

        Raises:
            InvalidArgumentError: When run, if no file matches.
        """
        files = Pipeline(*sources.list_files(file_pattern))
        return files if shuffle is False else files.shuffle(1 << 31, seed)

    def batch(self, batch_size: Any, drop_remainder: bool = False) -> Pipeline:
        """Give a Dataset of batches; the last one may be smaller.

        Args:
            batch_size: How many elements.
            drop_remainder: Whether to leave out a smaller one.

        Raises:
            InvalidArgumentError: When run, if elements of one batch differ in shape.
        """
        size = _positive(batch_size, "Batch size must be greater than zero.")
        rows = size if drop_remainder and not isinstance(size, Node) else None
        return self._derived(
            lambda run: stages.batches(self.elements(run), run.number(size), bool(drop_remainder), stacked),
            [size],
            nest.map_structure(lambda one: one.batched(rows), self.element),
        )

    def padded_batch(
        self, batch_size: Any, padded_shapes: Any, padding_values: Any = None, drop_remainder: bool = False
    ) -> Pipeline:
        """Give a Dataset of batches of elements that are made equally large.

        Args:
            batch_size: How many elements.
            padded_shapes: A nest of shapes; None or -1 for an axis as long as the longest of the batch.
            padding_values: A nest of what is added at the end; default 0, False or "".
            drop_remainder: Whether to leave out a smaller batch.

        Raises:
            DataLossError: When run, if an element is larger than its shape.
            TypeError: If a component is sparse.
        """
        size = _positive(batch_size, "Batch size must be greater than zero.")
        kinds = nest.flatten(self.element)
        if any(kind.is_sparse for kind in kinds):
            raise TypeError("Batching of padded sparse tensors is not currently supported")
        shapes = shapes_like(self.element, padded_shapes)
        padding = ["" if one.dtype.name == "string" else 0 for one in kinds]
        if padding_values is not None:
            padding = nest.flatten(padding_values)
        fill = [as_node(value, one.dtype) for value, one in builtins.zip(padding, kinds, strict=True)]
        count = size if drop_remainder and not isinstance(size, Node) else None
        leaves = [one.batched(count, shape) for one, shape in builtins.zip(kinds, shapes, strict=True)]
        return self._derived(
            lambda run: stages.batches(
                self.elements(run),
                run.number(size),
                bool(drop_remainder),
                lambda rows: padded(rows, shapes, [run.values[node] for node in fill], kinds),
            ),
            [size, *fill],
            nest.pack_sequence_as(self.element, leaves),
        )

    def map(self, map_func: Callable[..., Any], num_parallel_calls: Any = None) -> Pipeline:
        """Give a Dataset of what a function gives for each element.

        Args:
            map_func: Called once, with nodes: the parts of an element that is a tuple, else the element. What it gives
                is the new element.
            num_parallel_calls: Accepted; elements are made one by one.
        """
        made = ElementFunction(map_func, self.element, lambda value: _with_leaves(components(value, "Dataset.map()")))
        return self._derived(
            # Not a generator, which an error would end: the next element is given after it.
            lambda run: builtins.map(functools.partial(made.evaluate, run), self.elements(run)),
            made.captures,
            nest.map_structure(component_of, made.returned),
            made.control_inputs,
        )

    def flat_map(self, map_func: Callable[..., Any]) -> Pipeline:
        """Give the elements of the Datasets that a function gives for each element, one after the other.

        Args:
            map_func: As that of `map`; gives a Dataset.
        """
        return self.interleave(map_func, 1)

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: Any = -1,
        block_length: Any = 1,
        num_parallel_calls: Any = None,
    ) -> Pipeline:
        """Give the elements of the Datasets that a function gives for each element, of several in turn.

        Args:
            map_func: As that of `map`; gives a Dataset.
            cycle_length: Of how many in turn; -1 for a small number.
            block_length: How many elements of each, before the next one's turn.
            num_parallel_calls: Accepted.

        Raises:
            TypeError: If `map_func` gives no Dataset.
        """
        made = DatasetFunction(map_func, self.element, "map_func")
        inside: Pipeline = made.returned

        def opened(run: Pass) -> Any:
            cycle = run.number(cycle_length)
            return stages.interleaved(
                builtins.map(functools.partial(made.opened, run), self.elements(run)),
                _AUTOTUNED_CYCLE if cycle == -1 else cycle,
                run.number(block_length),
            )

        return self._derived(
            opened, [*made.captures, cycle_length, block_length], inside.element, made.control_inputs
        )  # fmt: skip

    def filter(self, predicate: Callable[..., Any]) -> Pipeline:
        """Leave out elements.

        Args:
            predicate: As the function of `map`; gives a scalar bool, False for what is left out.

        Raises:
            ValueError: If it gives something else.
        """
        made = ElementFunction(predicate, self.element, lambda value: (value, [as_node(value)]))
        kind = component_of(as_node(made.returned))
        if kind.dtype.name != "bool" or kind.shape.ndims not in (0, None):
            raise ValueError(
                "`predicate` return type must be convertible to a scalar boolean tensor. Was "
                f"{kind.dtype.name} of shape {kind.shape}."
            )
        return self._derived(
            lambda run: (values for values in self.elements(run) if made.evaluate(run, values)[0]),
            made.captures,
            control_inputs=made.control_inputs,
        )

    def shuffle(
        self, buffer_size: Any, seed: int | None = None, reshuffle_each_iteration: bool | None = None
    ) -> Pipeline:
        """Give the elements in another order: each is drawn from the next `buffer_size`.

        Args:
            buffer_size: How many to draw from.
            seed: Of the order; with it, or with the graph's, each initialization gives the same one.
            reshuffle_each_iteration: Whether each repetition has an order of its own; default True.
        """
        size = _positive(buffer_size, "buffer_size must be greater than zero.")
        order = stages.Order(seed, reshuffle_each_iteration is not False)
        return self._derived(
            lambda run: stages.shuffled(self.elements(run), run.number(size), order.generator(run)), [size]
        )

    def repeat(self, count: Any = None) -> Pipeline:
        """Give all elements several times.

        Args:
            count: How often; None or -1 for ever.
        """
        times = -1 if count is None else count
        return self._derived(lambda run: stages.repeated(lambda: self.elements(run), run.number(times)), [times])

    def take(self, count: Any) -> Pipeline:
        """Give the first elements.

        Args:
            count: How many; -1 for all.
        """
        return self._derived(lambda run: stages.first(self.elements(run), run.number(count)), [count])

    def skip(self, count: Any) -> Pipeline:
        """Leave out the first elements.

        Args:
            count: How many; -1 for all.
        """
        return self._derived(lambda run: stages.rest(self.elements(run), run.number(count)), [count])

    def shard(self, num_shards: Any, index: Any) -> Pipeline:
        """Give every `num_shards`-th element, from number `index` on: each worker's part.

        Args:
            num_shards: How many parts there are.
            index: Which part.

        Raises:
            InvalidArgumentError: If there is no such part.
        """
        if not isinstance(num_shards, Node) and not isinstance(index, Node):
            _check_shard(int(num_shards), int(index))

        def part(run: Pass) -> Any:
            parts, which = run.number(num_shards), run.number(index)
            _check_shard(parts, which)
            return itertools.islice(self.elements(run), which, None, parts)

        return self._derived(part, [num_shards, index])

    def cache(self, filename: Any = "") -> Pipeline:
        """Keep the elements in memory when all of them were given once, for later repetitions.

        Args:
            filename: Accepted; elements are kept in memory.
        """
        key = object()

        return self._derived(lambda run: stages.cached(lambda: self.elements(run), run, key))

    def prefetch(self, buffer_size: Any) -> Pipeline:
        """Give the elements as they are.

        Args:
            buffer_size: Accepted; nothing runs ahead.
        """
        return self

    def concatenate(self, dataset: Pipeline) -> Pipeline:
        """Give the elements, and then those of another Dataset.

        Raises:
            TypeError: If its elements have other dtypes.
        """
        ours, theirs = (nest.flatten(one.output_types) for one in (self, dataset))
        if ours != theirs:
            raise TypeError(
                f"Two datasets to concatenate have different types {self.output_types!r} and {dataset.output_types!r}"
            )
        pairs = builtins.zip(nest.flatten(self.element), nest.flatten(dataset.element), strict=True)
        leaves = [one.merged(other) for one, other in pairs]
        return self._derived(
            lambda run: itertools.chain(self.elements(run), dataset.elements(run)),
            dataset.captures,
            nest.pack_sequence_as(self.element, leaves),
            dataset.control_inputs,
        )

    def enumerate(self, start: Any = 0) -> Pipeline:
        """Give pairs of a number, int64 and counted from `start`, and an element."""
        return Pipeline.zip((Pipeline.range(start, 2**62), self))

    def apply(self, transformation_func: Callable[[Pipeline], Any]) -> Any:
        """Give what a function gives for this Dataset."""
        return transformation_func(self)

    def make_one_shot_iterator(self) -> Iterator:
        """Make an iterator that begins by itself, and gives all elements once.

        Raises:
            ValueError: If the Dataset uses a Variable or a placeholder.
        """
        return Iterator.one_shot(self)

    def make_initializable_iterator(self, shared_name: str | None = None) -> Iterator:
        """Make an iterator that begins, and begins anew, when its `initializer` is run.

        Args:
            shared_name: Accepted; an iterator belongs to its process.
        """
        return Iterator.initializable(self)

    def _derived(
        self, make: Make, used: Sequence[Any] = (), element: Any = None, control_inputs: Sequence[Node] = ()
    ) -> Pipeline:
        return Pipeline(
            self.element if element is None else element,
            [*self.captures, *(one for one in used if isinstance(one, Node))],
            make,
            [*self.control_inputs, *control_inputs],
        )


class DatasetFunction(ElementFunction):
    """A function of an element that gives a Dataset.

    Raises:
        TypeError: If it gives something else.
    """

    def __init__(self, function: Callable[..., Any], element: Any, what: str) -> None:
        def inner(value: Any) -> tuple[Any, Sequence[Node]]:
            if not isinstance(value, Pipeline):
                raise TypeError(f"`{what}` must return a `Dataset` object, not {value!r}.")
            return value, value.captures

        super().__init__(function, element, inner)

    def opened(self, run: Pass, values: Values, memory: dict[Any, Any] | None = None) -> Any:
        """Iterate over the elements of the Dataset of one element."""
        known = builtins.zip(self.returned.captures, self.evaluate(run, values), strict=True)
        return self.returned.elements(Pass(dict(known), memory or {}))


def _positive(value: Any, text: str) -> Any:
    plain = value.__node__() if hasattr(value, "__node__") else value
    if not isinstance(plain, Node) and int(plain) < 1:
        raise InvalidArgumentError(text)
    return plain


def _check_shard(parts: int, which: int) -> None:
    if not 0 <= which < parts:
        raise InvalidArgumentError(f"Index must be between 0 and {parts - 1} (currently index = {which}).")


def _with_leaves(made: Any) -> tuple[Any, list[Node]]:
    return made, nest.flatten(made)
