"""SparseTensors on their way through a queue of examples: each is one string, and a batch of strings a SparseTensor.

Follows TensorFlow 1.15, python/training/input.py (`_store_sparse_tensors`), whose queues hold no SparseTensors either.
The strings are those of `globalstep.wire.queue_elements`, so that queues on PS tasks carry them too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.dtypes import DType
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.wire.queue_elements import decode_element, encode_element

#: Of a component of examples: its dtype, and whether it is sparse.
Kind = tuple[DType, bool]


def kind_of(item: Node | SparseTensor) -> Kind:
    """Give the kind of a component."""
    return item.dtype, isinstance(item, SparseTensor)


def stored(item: Node | SparseTensor, enqueue_many: bool) -> Node:
    """Give what a queue holds for a component.

    Args:
        item: A node, which is given back, or a SparseTensor.
        enqueue_many: Whether it has the examples as its rows.

    Returns:
        Of a SparseTensor a node of a string; with `enqueue_many` of a string for each row.

    Raises:
        InvalidArgumentError: When run, if rows are asked of a SparseTensor of rank 1 or less.
    """
    if not isinstance(item, SparseTensor):
        return item
    op_type, shape = ("SerializeManySparse", [None]) if enqueue_many else ("SerializeSparse", [])
    return Node(op_type, (item.indices, item.values, item.dense_shape), dtype="string", shape=shape)


def restored(node: Node, kind: Kind, of: Node | SparseTensor, enqueue_many: bool) -> Node | SparseTensor:
    """Give the batch that a queue gave for a component.

    Args:
        node: What came out of the queue.
        kind: Of the component.
        of: The component of the first source, whose rank the batch's follows.
        enqueue_many: Whether that had the examples as its rows.

    Returns:
        The node itself, or a SparseTensor whose first dimension is the batch; its others are those of the largest
        example.

    Raises:
        InvalidArgumentError: When run, if the examples' ranks differ.
    """
    dtype, sparse = kind
    if not sparse or not isinstance(of, SparseTensor):
        return node
    rank = of.shape.ndims
    if rank is not None and not enqueue_many:
        rank += 1
    made = Node("DeserializeManySparse", (node,), attrs={"tuple": True, "dtype": dtype})
    return SparseTensor(
        tuple_item(made, 0, name="indices", dtype="int64", shape=[None, rank]),
        tuple_item(made, 1, name="values", dtype=dtype, shape=[None]),
        tuple_item(made, 2, name="dense_shape", dtype="int64", shape=[rank]),
    )


def _text(places: Any, filled: Any, shape: Any) -> bytes:
    return encode_element((np.asarray(places, np.int64), filled, np.asarray(shape, np.int64)))


def _whole(places: Any, filled: Any, shape: Any) -> Any:
    return np.array(_text(places, filled, shape), object)


def _rows(places: Any, filled: Any, shape: Any) -> Any:
    if len(shape) < 2:
        raise InvalidArgumentError(f"Rank of input SparseTensor should be > 1, but saw rank: {len(shape)}")
    places, filled = np.asarray(places, np.int64), np.asarray(filled)
    order = np.argsort(places[:, 0], kind="stable")
    ends = np.searchsorted(places[order, 0], np.arange(1, int(shape[0])))
    texts = np.empty(int(shape[0]), object)
    for number, row in enumerate(np.split(order, ends) if len(texts) else ()):
        texts[number] = _text(places[row, 1:], filled[row], shape[1:])
    return texts


computes("SerializeSparse", _whole)
computes("SerializeManySparse", _rows)


@computes("DeserializeManySparse")
def _joined(texts: Any, *, dtype: DType) -> tuple[Any, Any, Any]:
    parts = ["int64", dtype.name, "int64"]
    examples = [decode_element(text, parts) for text in np.asarray(texts, object).reshape(-1)]
    if not examples:
        raise InvalidArgumentError("Must have at least 1 serialized SparseTensor, but input matrix has 0 rows")
    rank = len(examples[0][2])
    for number, (_, _, shape) in enumerate(examples):
        if len(shape) != rank:
            raise InvalidArgumentError(
                f"Inconsistent rank across SparseTensors: rank prior to SparseTensor[{number}] was: {rank + 1} but "
                f"rank of SparseTensor[{number}] is: {len(shape) + 1}"
            )
    places = [np.insert(part.reshape(-1, rank), 0, number, axis=1) for number, (part, _, _) in enumerate(examples)]
    sizes = np.max([shape for _, _, shape in examples], axis=0)
    return np.concatenate(places), np.concatenate([part for _, part, _ in examples]), np.array([len(examples), *sizes])
