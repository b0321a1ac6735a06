"""Tables of vocabularies: from words to their numbers, and back.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/lookup_ops.py`, `contrib/lookup/lookup_ops.py`.
"""

from __future__ import annotations

from typing import Any

from globalstep.dtypes import DTypeLike
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph
from globalstep.tf1.ops.array_ops import size
from globalstep.tf1.ops.building import is_node
from globalstep.tf1.ops.constant_ops import range as numbers
from globalstep.tf1.ops.math_ops import cast
from globalstep.tf1.text.lookup_tables import (
    HashTable,
    IdTableWithHashBuckets,
    KeyValueTensorInitializer,
    LookupTable,
    TextFileIndex,
    TextFileInitializer,
)


def _ids(count: Node) -> Node:
    return numbers(cast(count, "int64"))


def _with_buckets(table: HashTable, num_oov_buckets: int, name: str) -> LookupTable:
    return IdTableWithHashBuckets(table, num_oov_buckets, name=name) if num_oov_buckets else table


def index_table_from_tensor(
    mapping: Any = None,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = None,
    dtype: DTypeLike = "string",
    name: str | None = None,
    vocabulary_list: Any = None,
) -> LookupTable:
    """Make the table from each word of a vector to its place.

    Args:
        mapping: 1-D node or array of words, or of ints.
        num_oov_buckets: How many numbers above the vocabulary's are given to other keys, by their hash.
        default_value: What other keys get, if there are no such numbers.
        hasher_spec: Accepted; the fast hash is used.
        dtype: Dtype of the keys, of what is given as Python values.
        name: Its name; default "index_table".
        vocabulary_list: The name of `mapping` in `gs.lookup`.

    Returns:
        A table, to be filled by `gs.tables_initializer()`.

    Raises:
        ValueError: Without words, or for a negative number of buckets.
    """
    vocabulary = vocabulary_list if mapping is None else mapping
    if vocabulary is None:
        raise ValueError("vocabulary_list must be specified.")
    _require_buckets(num_oov_buckets)
    with get_default_graph().name_scope(name or "index_table") as scope:
        keys = vocabulary if is_node(vocabulary) else as_node(vocabulary)
        if keys.dtype.is_integer:
            keys = cast(keys, "int64")
        table = HashTable(KeyValueTensorInitializer(keys, _ids(size(keys))), default_value)
        return _with_buckets(table, num_oov_buckets, f"{scope.rstrip('/').rsplit('/', 1)[-1]}_Lookup")


def _require_buckets(count: int) -> None:
    if count < 0:
        raise ValueError(f"num_oov_buckets must be greater or equal than 0, got {count}.")


def index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: Any = None,
    key_dtype: DTypeLike = "string",
    name: str | None = None,
    key_column_index: int = TextFileIndex.WHOLE_LINE,
    value_column_index: int = TextFileIndex.LINE_NUMBER,
    delimiter: str = "\t",
) -> LookupTable:
    """Make the table from each line of a file to its number.

    Args:
        vocabulary_file: Path: a string, or a scalar string node.
        num_oov_buckets: As for `index_table_from_tensor`.
        vocab_size: How many lines count; None for all.
        default_value: As for `index_table_from_tensor`.
        hasher_spec: Accepted; the fast hash is used.
        key_dtype: string, or int64 for a file of ints.
        name: Its name; default "index_table".
        key_column_index: What of a line is the key; see `TextFileIndex`.
        value_column_index: What of a line is the value.
        delimiter: Between columns.

    Returns:
        A table, to be filled by `gs.tables_initializer()`.

    Raises:
        ValueError: Without a path, or for numbers that cannot be.
    """
    if vocabulary_file is None or (isinstance(vocabulary_file, str) and not vocabulary_file):
        raise ValueError("vocabulary_file must be specified and must not be empty.")
    _require_buckets(num_oov_buckets)
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"vocab_size must be greater than 0, got {vocab_size}.")
    with get_default_graph().name_scope(name or "index_table"):
        initializer = TextFileInitializer(
            vocabulary_file, key_dtype, key_column_index, "int64", value_column_index, vocab_size, delimiter
        )
        return _with_buckets(HashTable(initializer, default_value), num_oov_buckets, "hash_table_Lookup")


def index_to_string_table_from_tensor(
    mapping: Any = None, default_value: Any = "UNK", name: str | None = None, vocabulary_list: Any = None
) -> LookupTable:
    """Make the table from each place in a vector to the word there.

    Args:
        mapping: 1-D node or array of words.
        default_value: What other numbers get.
        name: Its name; default "index_to_string".
        vocabulary_list: The name of `mapping` in `gs.lookup`.

    Returns:
        A table, to be filled by `gs.tables_initializer()`.
    """
    vocabulary = vocabulary_list if mapping is None else mapping
    if vocabulary is None:
        raise ValueError("vocabulary_list must be specified.")
    with get_default_graph().name_scope(name or "index_to_string"):
        words = as_node(vocabulary)
        return HashTable(KeyValueTensorInitializer(_ids(size(words)), words), default_value)


def index_to_string_table_from_file(
    vocabulary_file: Any,
    vocab_size: int | None = None,
    default_value: Any = "UNK",
    name: str | None = None,
    key_column_index: int = TextFileIndex.LINE_NUMBER,
    value_column_index: int = TextFileIndex.WHOLE_LINE,
    delimiter: str = "\t",
) -> LookupTable:
    """Make the table from each line's number to the line; see `index_table_from_file`.

    Args:
        vocabulary_file: As there.
        vocab_size: As there.
        default_value: What other numbers get.
        name: Its name; default "index_to_string".
        key_column_index: As there.
        value_column_index: As there.
        delimiter: As there.

    Returns:
        A table, to be filled by `gs.tables_initializer()`.
    """
    if not is_node(vocabulary_file) and not vocabulary_file:
        raise ValueError("vocabulary_file must be specified.")
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"vocab_size must be greater than 0, got {vocab_size}.")
    with get_default_graph().name_scope(name or "index_to_string"):
        initializer = TextFileInitializer(
            vocabulary_file, "int64", key_column_index, "string", value_column_index, vocab_size, delimiter
        )
        return HashTable(initializer, default_value)


def string_to_index(tensor: Any, mapping: Any, default_value: int = -1, name: str | None = None) -> Any:
    """Give the place of each word in `mapping`; see `index_table_from_tensor`.

    Args:
        tensor: Words: node, array or SparseTensor.
        mapping: As there.
        default_value: As there.
        name: Name of the node.
    """
    return index_table_from_tensor(mapping, default_value=default_value).lookup(tensor, name)


def index_to_string(tensor: Any, mapping: Any, default_value: Any = "UNK", name: str | None = None) -> Any:
    """Give the word at each place of `mapping`; see `index_to_string_table_from_tensor`.

    Args:
        tensor: int64 node, array or SparseTensor.
        mapping: As there.
        default_value: As there.
        name: Name of the node.
    """
    return index_to_string_table_from_tensor(mapping, default_value).lookup(tensor, name)
