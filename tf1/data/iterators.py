"""Iterators: what gives the elements of a Dataset to the graph, one for each run.

Follows TensorFlow 1.15, python/data/ops/iterator_ops.py. Where an iterator is belongs to the graph and its process; so
a session that was recovered goes on behind the elements that were given.

Layer: tf1. Threads: several may run `get_next`; each gets elements of its own.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from globalstep.dtypes import as_dtype
from globalstep.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from globalstep.tf1.data.elements import (
    Component,
    Pass,
    Structured,
    arrays_of,
    joined,
    parts_of,
    shapes_like,
    sparse_like,
)
from globalstep.tf1.graph import nest
from globalstep.tf1.graph.graph import Node, as_node, name_scope, tuple_item
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.variables.variables import Variable

if TYPE_CHECKING:
    from globalstep.tf1.data.pipeline import Pipeline


class _Place:
    def __init__(self) -> None:
        # Guards _elements; held while the next one is made, for only then is it known.
        self._lock = threading.Lock()
        self._elements: Any = None

    def start(self, dataset: Pipeline, values: Any, again: bool = True) -> None:
        """Begin anew; unless `again`, only if it has not begun."""
        with self._lock:
            if again or self._elements is None:
                run = Pass(dict(zip(dataset.captures, values, strict=True)), {})
                self._elements = dataset.elements(run)

    def next(self) -> tuple[Any, ...]:
        with self._lock:
            if self._elements is None:
                raise FailedPreconditionError(
                    "GetNext() failed because the iterator has not been initialized. Ensure that you have run the "
                    "initializer operation for this iterator before getting the next element."
                )
            try:
                element: tuple[Any, ...] = next(self._elements)
            except StopIteration:
                raise OutOfRangeError("End of sequence") from None
            return element


#: By handle; an iterator that nobody has is not here.
_PLACES: weakref.WeakValueDictionary[bytes, _Place] = weakref.WeakValueDictionary()


class Iterator(Structured):
    """See the module's text. Datasets make them: `make_one_shot_iterator`, `make_initializable_iterator`.

    Args:
        element: A nest of Component.
        initializer: The operation that begins anew, if there is one.
    """

    def __init__(self, element: Any, initializer: Node | None = None) -> None:
        super().__init__(element)
        self._place = _Place()
        self._initializer = initializer
        self._one_shot: Pipeline | None = None
        self._given_handle: Node | None = None

    @staticmethod
    def one_shot(dataset: Pipeline) -> Iterator:
        """Make an iterator that begins by itself, once.

        Raises:
            ValueError: If the Dataset uses a Variable or a placeholder.
        """
        _require_constant(dataset)
        made = Iterator(dataset.element)
        made._one_shot = dataset
        return made

    @staticmethod
    def initializable(dataset: Pipeline) -> Iterator:
        """Make an iterator that begins, and begins anew, when its `initializer` is run."""
        made = Iterator(dataset.element)
        made._initializer = made.make_initializer(dataset)
        return made

    @staticmethod
    def from_structure(
        output_types: Any, output_shapes: Any = None, shared_name: str | None = None, output_classes: Any = None
    ) -> Iterator:
        """Make an iterator for any Dataset with such elements; see `make_initializer`.

        Args:
            output_types: A nest of dtypes.
            output_shapes: A nest of static shapes like it; default unknown ones.
            shared_name: Accepted; an iterator belongs to its process.
            output_classes: A nest of Node or SparseTensor like it; default Node everywhere.
        """
        return Iterator(_element(output_types, output_shapes, output_classes))

    @staticmethod
    def from_string_handle(
        string_handle: Any, output_types: Any, output_shapes: Any = None, output_classes: Any = None
    ) -> Iterator:
        """Make an iterator that gives the elements of the one whose handle is fed.

        Args:
            string_handle: Usually a placeholder of a string; see the method `string_handle`.
            output_types: A nest of dtypes.
            output_shapes: A nest of static shapes like it; default unknown ones.
            output_classes: A nest of Node or SparseTensor like it; default Node everywhere.
        """
        made = Iterator(_element(output_types, output_shapes, output_classes))
        made._given_handle = as_node(string_handle, "string")
        return made

    @property
    def initializer(self) -> Node:
        """The operation that begins anew.

        Raises:
            ValueError: If it begins by itself.
        """
        if self._initializer is None:
            raise ValueError("Iterator does not have an initializer.")
        return self._initializer

    def make_initializer(self, dataset: Pipeline, name: str | None = None) -> Node:
        """Make the operation that begins with the first element of a Dataset.

        Args:
            dataset: Its elements have the dtypes of the iterator's.
            name: Of the operation.

        Raises:
            TypeError: If they have not.
        """
        ours, theirs = (nest.flatten(one.output_types) for one in (self, dataset))
        if ours != theirs:
            raise TypeError(
                f"Expected output types {self.output_types!r} but got dataset with {dataset.output_types!r}."
            )
        place = self._place
        return Node(
            "MakeIterator", dataset.captures, fn=lambda *values: place.start(dataset, values), name=name,
            operation=True, stateful=True, control_inputs=dataset.control_inputs,
        )  # fmt: skip

    def get_next(self, name: str | None = None) -> Any:
        """Make the nodes of the next element, in its structure.

        Args:
            name: Of the node; default "IteratorGetNext".

        Raises:
            OutOfRangeError: When run, if there is none left.
            FailedPreconditionError: When run, if the initializer has not been.
        """
        place, dataset = self._place, self._one_shot
        inputs: tuple[Node, ...] = ()
        if self._given_handle is not None:
            inputs = (self._given_handle,)
        elif dataset is not None:
            inputs = dataset.captures

        def following(*values: Any) -> tuple[Any, ...]:
            if self._given_handle is not None:
                return _place_of(values[0]).next()
            if dataset is not None:
                place.start(dataset, values, again=False)
            return place.next()

        kinds = nest.flatten(self.element)
        parts = [part for kind in kinds for part in parts_of(kind)]
        node = Node(
            "IteratorGetNext", inputs, fn=lambda *values: tuple(arrays_of(following(*values))), name=name,
            stateful=True, attrs={"tuple": True}, control_inputs=dataset.control_inputs if dataset else (),
        )  # fmt: skip
        with name_scope(f"{node.op_name}/"):
            items = [
                tuple_item(node, at, name="component", dtype=one.dtype, shape=one.shape) for at, one in enumerate(parts)
            ]
        return nest.pack_sequence_as(self.element, joined(kinds, items, sparse_like(kinds)))

    def string_handle(self, name: str | None = None) -> Node:
        """Make the node of what stands for this iterator in the feed of another; see `from_string_handle`."""
        place = self._place
        handle = b"iterator-%d" % id(place)
        _PLACES[handle] = place
        dataset = self._one_shot
        inputs = dataset.captures if dataset else ()

        def give(*values: Any) -> bytes:
            if dataset is not None:
                place.start(dataset, values, again=False)
            return handle

        return Node(
            "IteratorToStringHandle", inputs, fn=give, name=name, dtype="string", shape=(), stateful=True,
            attrs={"stops_gradient": True},
        )  # fmt: skip


def _place_of(handle: Any) -> _Place:
    plain = handle.item() if hasattr(handle, "item") else handle
    place = _PLACES.get(plain.encode() if isinstance(plain, str) else plain)
    if place is None:
        raise InvalidArgumentError(f"{plain!r} is the handle of no iterator of this process.")
    return place


def _element(output_types: Any, output_shapes: Any, output_classes: Any) -> Any:
    kinds = [as_dtype(one) for one in nest.flatten(output_types)]
    shapes = [TensorShape(None)] * len(kinds) if output_shapes is None else shapes_like(output_types, output_shapes)
    classes = [Node] * len(kinds) if output_classes is None else nest.flatten(output_classes)
    leaves = [
        Component(kind, shape, issubclass(one, SparseTensor))
        for kind, shape, one in zip(kinds, shapes, classes, strict=True)
    ]
    return nest.pack_sequence_as(output_types, leaves)


def _require_constant(dataset: Pipeline) -> None:
    waiting, seen = list(dataset.captures), set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Variable):
            raise ValueError(
                "Failed to create a one-shot iterator for a dataset. `Dataset.make_one_shot_iterator()` does not "
                "support datasets that capture stateful objects, such as a `Variable` or `LookupTable`. In these "
                "cases, use `Dataset.make_initializable_iterator()`. "
                f"(It uses {node.op_name!r}.)"
            )
        if node.op_type == "Placeholder":
            raise ValueError(
                f"Cannot capture a placeholder (name:{node.op_name}, type:Placeholder) by value. "
                "Use `Dataset.make_initializable_iterator()`."
            )
        waiting.extend(node.inputs)


def make_one_shot_iterator(dataset: Pipeline) -> Iterator:
    """Make an iterator that begins by itself; see Dataset.make_one_shot_iterator."""
    return dataset.make_one_shot_iterator()


def make_initializable_iterator(dataset: Pipeline, shared_name: str | None = None) -> Iterator:
    """Make an iterator that begins when its `initializer` is run; see Dataset.make_initializable_iterator."""
    return dataset.make_initializable_iterator(shared_name)
