"""Datasets of batches of whole files: `make_csv_dataset` and `make_batched_features_dataset`.

Layer: tf1. Source: TensorFlow 1.15 `python/data/experimental/ops/readers.py`.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.tf1 import gfile
from globalstep.tf1.data.files import TextLineDataset, TFRecordDataset
from globalstep.tf1.data.pipeline import Pipeline
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.ops.constant_ops import constant
from globalstep.tf1.ops.parsing_ops import decode_csv, parse_example

_TYPES = ("int32", "int64", "float32", "float64", "string")


def _files(file_pattern: Any) -> list[str]:
    patterns = list(file_pattern) if isinstance(file_pattern, (list, tuple)) else [file_pattern]
    if not patterns:
        raise ValueError("File pattern is empty.")
    paths = sorted(gfile.Glob(patterns))
    if not paths:
        raise ValueError(f"No files match {file_pattern}.")
    return paths


def _batches(
    names: Sequence[str], open_one: Callable[[Any], Pipeline], at_once: int, batch_size: int, whole: bool,
    epochs: int | None, shuffle: bool, buffer_size: int, seed: int | None,
) -> Pipeline:  # fmt: skip
    files = Pipeline.from_tensor_slices(list(names))
    if shuffle:
        files = files.shuffle(len(names), seed)
    elements = files.interleave(open_one, at_once)
    if shuffle:
        elements = elements.shuffle(buffer_size, seed)
    return elements.repeat(epochs).batch(batch_size, whole or epochs is None)


def _labelled(columns: dict[str, Any], label: str | None) -> Any:
    return columns if label is None else (columns, columns.pop(label))


def make_batched_features_dataset(
    file_pattern: Any,
    batch_size: int,
    features: Mapping[str, Any],
    reader: Callable[..., Pipeline] = TFRecordDataset,
    label_key: str | None = None,
    reader_args: Sequence[Any] | None = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: Any = None,
    reader_num_threads: int = 1,
    parser_num_threads: int = 2,
    sloppy_ordering: bool = False,
    drop_final_batch: bool = False,
) -> Pipeline:
    """Give batches of parsed Examples.

    Args:
        file_pattern: Paths or patterns.
        batch_size: How many Examples in a batch.
        features: As `gs.parse_example` takes them.
        reader: Makes a Dataset of strings of a path.
        label_key: Name of the feature that is the label: then elements are pairs.
        reader_args: Further arguments of `reader`.
        num_epochs: How often all; None for ever, and then all batches are whole.
        shuffle: Whether files and Examples come in another order.
        shuffle_buffer_size: See Dataset.shuffle.
        shuffle_seed: See Dataset.shuffle.
        prefetch_buffer_size: Accepted.
        reader_num_threads: From how many files in turn.
        parser_num_threads: Accepted.
        sloppy_ordering: Accepted.
        drop_final_batch: Whether to leave out a batch that is smaller.

    Raises:
        ValueError: If there are no files, or no such label.
    """
    if label_key is not None and label_key not in features:
        raise ValueError(f"The `label_key` provided ({label_key!r}) must be one of the `features` keys.")
    batches = _batches(
        _files(file_pattern), lambda name: reader(name, *(reader_args or ())), reader_num_threads, batch_size,
        drop_final_batch, num_epochs, shuffle, shuffle_buffer_size, shuffle_seed,
    )  # fmt: skip
    return batches.map(lambda texts: _labelled(parse_example(texts, dict(features)), label_key))


def make_csv_dataset(
    file_pattern: Any,
    batch_size: int,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[Any] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[Any] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: Any = None,
    num_parallel_reads: int = 1,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: Any = None,
    ignore_errors: bool = False,
) -> Pipeline:
    """Give batches of the columns of CSV files: name -> node, and the label if there is one.

    Args:
        file_pattern: Paths or patterns.
        batch_size: How many lines in a batch.
        column_names: Of all columns; default the first line of the first file.
        column_defaults: For each column that is taken: a dtype where it must be given, else what stands for an empty
            field; default what fits the first lines.
        label_name: Which column is the label: then elements are pairs.
        select_columns: Which columns are taken, by name or place; default all.
        field_delim: What is between fields.
        use_quote_delim: Whether quotes may enclose a field.
        na_value: What is an empty field, too.
        header: Whether files begin with a line of names.
        num_epochs: How often all; None for ever, and then all batches are whole.
        shuffle: Whether files and lines come in another order.
        shuffle_buffer_size: See Dataset.shuffle.
        shuffle_seed: See Dataset.shuffle.
        prefetch_buffer_size: Accepted.
        num_parallel_reads: From how many files in turn.
        sloppy: Accepted.
        num_rows_for_inference: How many lines say what fits; None for all.
        compression_type: "GZIP", "ZLIB" or "".
        ignore_errors: Must be False.

    Raises:
        ValueError: For names that are not there or twice, or numbers of columns that differ.
    """
    if ignore_errors:
        raise ValueError("ignore_errors is not supported: use gs.data.experimental.ignore_errors after a map.")
    files = _files(file_pattern)
    if column_names is None and not header:
        raise ValueError("Cannot infer column names without a header line.")
    options = {"delimiter": field_delim, "quoting": csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE}
    names = list(column_names) if column_names is not None else _rows(files[:1], 0, options, 1)[0]
    if len(set(names)) != len(names):
        raise ValueError("Cannot have duplicate column names.")
    places = _places(select_columns, names)
    if column_defaults is None:
        rows = _rows(files, int(header), options, num_rows_for_inference)
        defaults: list[Any] = [_fitting([row[place] for row in rows], na_value) for place in places]
    else:
        defaults = [constant([], one) if _is_dtype(one) else one for one in column_defaults]
    if len(defaults) != len(places):
        raise ValueError("If specified, column_defaults and select_columns must have same length.")
    selected = [names[place] for place in places]
    if label_name is not None and label_name not in selected:
        raise ValueError("`label_name` provided must be one of the columns.")

    def lines_of(name: Any) -> Pipeline:
        return TextLineDataset(name, compression_type).skip(int(header))

    def parse(lines: Any) -> Any:
        columns = decode_csv(
            lines, [one if isinstance(one, Node) else np.reshape(one, -1) for one in defaults], field_delim,
            use_quote_delim, na_value=na_value, select_cols=places,
        )  # fmt: skip
        return _labelled(dict(zip(selected, columns, strict=True)), label_name)

    batches = _batches(
        files, lines_of, num_parallel_reads, batch_size, False, num_epochs, shuffle, shuffle_buffer_size, shuffle_seed
    )
    return batches.map(parse)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, (DType, type)) or (isinstance(value, str) and value in _TYPES)


def _places(selected: Sequence[Any] | None, names: Sequence[str]) -> list[int]:
    if selected is None:
        return list(range(len(names)))
    try:
        places = sorted(names.index(one) if isinstance(one, str) else int(one) for one in selected)
    except ValueError as error:
        raise ValueError(f"Value {selected!r} not one of the column names {list(names)}.") from error
    if len(set(places)) != len(places) or not all(0 <= place < len(names) for place in places):
        raise ValueError(f"select_columns must be different columns of {len(names)}: {selected}")
    return places


def _rows(files: Sequence[str], skipped: int, options: Mapping[str, Any], number: int | None) -> list[list[str]]:
    rows: list[list[str]] = []
    for name in files:
        with gfile.GFile(name, "r") as file:
            rest = None if number is None else skipped + number - len(rows)
            rows += itertools.islice(csv.reader(file, **options), skipped, rest)
    return rows


def _fitting(texts: Sequence[str], missing: str) -> Any:
    """Give the default, 0 or "", of the first dtype that holds all texts."""
    present = [text for text in texts if text not in ("", missing)]
    for name in _TYPES[:-1]:
        kind = np.dtype(name)
        try:
            values = [int(text) if kind.kind == "i" else float(text) for text in present]
        except ValueError:
            continue
        limits: Any = np.iinfo(kind) if kind.kind == "i" else np.finfo(kind)
        if present and all(not np.isfinite(value) or limits.min <= value <= limits.max for value in values):
            return constant([0], as_dtype(name))
    return constant([""])
