"""Datasets of what is in files: lines, TFRecords, records of one length.

Follows TensorFlow 1.15, python/data/ops/readers.py.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from globalstep.dtypes import as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.files.records import TFRecordOptions, read_records
from globalstep.files.storage import path_error, storage_for
from globalstep.tf1.data.elements import Component, text_of
from globalstep.tf1.data.pipeline import Pipeline
from globalstep.tf1.graph.graph import as_node
from globalstep.tf1.graph.shapes import TensorShape


def TextLineDataset(  # noqa: N802
    filenames: Any, compression_type: Any = None, buffer_size: Any = None, num_parallel_reads: Any = None
) -> Pipeline:
    """Give a Dataset of the lines of text files, without their ends.

    Args:
        filenames: A name, several, a node of them, or a Dataset of them.
        compression_type: "", "GZIP" or "ZLIB".
        buffer_size: Accepted.
        num_parallel_reads: Accepted; files are read one after the other.
    """
    kind = TFRecordOptions(compression_type or None).compression_type
    return _records_of(filenames, lambda name: _lines(name, kind))


def TFRecordDataset(  # noqa: N802
    filenames: Any, compression_type: Any = None, buffer_size: Any = None, num_parallel_reads: Any = None
) -> Pipeline:
    """Give a Dataset of the records of TFRecord files.

    Args:
        filenames: A name, several, a node of them, or a Dataset of them.
        compression_type: "", "GZIP" or "ZLIB".
        buffer_size: Accepted.
        num_parallel_reads: Accepted; files are read one after the other.
    """
    return _records_of(filenames, lambda name: read_records(name, compression_type or None))


def FixedLengthRecordDataset(  # noqa: N802
    filenames: Any, record_bytes: int, header_bytes: Any = None, footer_bytes: Any = None, buffer_size: Any = None
) -> Pipeline:
    """Give a Dataset of the records of files whose records have one length.

    Args:
        filenames: A name, several, a node of them, or a Dataset of them.
        record_bytes: Length of a record.
        header_bytes: Length of what stands before the first one.
        footer_bytes: Length of what stands behind the last one.
        buffer_size: Accepted.

    Raises:
        InvalidArgumentError: When run, if the records do not fill a file.
    """
    return _records_of(
        filenames, lambda name: _equal_records(name, int(record_bytes), int(header_bytes or 0), int(footer_bytes or 0))
    )


def _records_of(filenames: Any, read: Callable[[str], Iterator[bytes]]) -> Pipeline:
    element = Component(as_dtype("string"), TensorShape([]))
    if isinstance(filenames, Pipeline):
        paths = filenames
        return Pipeline(
            element,
            paths.captures,
            lambda run: ((record,) for (name,) in paths.elements(run) for record in read(text_of(name))),
            paths.control_inputs,
        )
    node = as_node(filenames, "string")
    return Pipeline(
        element,
        [node],
        lambda run: (
            (record,) for name in np.asarray(run.values[node], object).reshape(-1) for record in read(text_of(name))
        ),
    )


def open_to_read(path: str) -> Any:
    """Open a file, or say why that fails."""
    try:
        return storage_for(path).open_read(path)
    except OSError as error:
        raise path_error(error, path, "read") from error


def _lines(path: str, compression: str) -> Iterator[bytes]:
    with open_to_read(path) as file:
        for line in _uncompressed(file, compression):
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _uncompressed(file: Any, compression: str) -> Any:
    if compression == "GZIP":
        return gzip.GzipFile(fileobj=file)
    return io.BytesIO(zlib.decompress(file.read())) if compression == "ZLIB" else file


def _equal_records(path: str, size: int, header: int, footer: int) -> Iterator[bytes]:
    with open_to_read(path) as file:
        data = file.read()
    body = len(data) - header - footer
    if body % size:
        raise InvalidArgumentError(
            f"Excluding the header ({header} bytes) and footer ({footer} bytes), input file {path!r} has body length "
            f"{body} bytes, which is not an exact multiple of the record length ({size} bytes)."
        )
    for start in range(header, header + body, size):
        yield data[start : start + size]
