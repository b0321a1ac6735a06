"""Datasets of what is in files: lines, TFRecords, records of one length.

Follows TensorFlow 1.15, python/data/ops/readers.py.

Layer: shared.
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
from globalstep.graph.graph import as_node
from globalstep.graph.shapes import TensorShape
from globalstep.pipelines.elements import Component, Pass, text_of
from globalstep.pipelines.pipeline import Pipeline

__all__ = ["FixedLengthRecordDataset", "TFRecordDataset", "TextLineDataset"]


class _Files(Pipeline):
    def __init__(self, filenames: Any, read: Callable[[str], Iterator[bytes]]) -> None:
        element = Component(as_dtype("string"), TensorShape([]))
        if isinstance(filenames, Pipeline):
            names = filenames

            def records(run: Pass) -> Iterator[tuple[bytes]]:
                for (name,) in names.elements(run):
                    for record in read(text_of(name)):
                        yield (record,)

            super().__init__(element, names.captures, records, names.control_inputs)
            return
        node = as_node(filenames, "string")

        def all_records(run: Pass) -> Iterator[tuple[bytes]]:
            for name in np.asarray(run.values[node], object).reshape(-1):
                for record in read(text_of(name)):
                    yield (record,)

        super().__init__(element, [node], all_records)


class TextLineDataset(_Files):
    """The lines of text files, without their ends.

    Args:
        filenames: A name, several, a node of them, or a Dataset of them.
        compression_type: "", "GZIP" or "ZLIB".
        buffer_size: Accepted.
        num_parallel_reads: Accepted; files are read one after the other.
    """

    def __init__(
        self, filenames: Any, compression_type: Any = None, buffer_size: Any = None, num_parallel_reads: Any = None
    ) -> None:
        kind = TFRecordOptions(compression_type or None).compression_type
        super().__init__(filenames, lambda name: _lines(name, kind))


class TFRecordDataset(_Files):
    """The records of TFRecord files.

    Args:
        filenames: A name, several, a node of them, or a Dataset of them.
        compression_type: "", "GZIP" or "ZLIB".
        buffer_size: Accepted.
        num_parallel_reads: Accepted; files are read one after the other.
    """

    def __init__(
        self, filenames: Any, compression_type: Any = None, buffer_size: Any = None, num_parallel_reads: Any = None
    ) -> None:
        super().__init__(filenames, lambda name: read_records(name, compression_type or None))


class FixedLengthRecordDataset(_Files):
    """The records of files whose records have one length.

    Args:
        filenames: A name, several, a node of them, or a Dataset of them.
        record_bytes: Length of a record.
        header_bytes: Length of what stands before the first one.
        footer_bytes: Length of what stands behind the last one.
        buffer_size: Accepted.

    Raises:
        InvalidArgumentError: When run, if the records do not fill a file.
    """

    def __init__(
        self, filenames: Any, record_bytes: int, header_bytes: Any = None, footer_bytes: Any = None,
        buffer_size: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            filenames,
            lambda name: _equal_records(name, int(record_bytes), int(header_bytes or 0), int(footer_bytes or 0)),
        )


def _read(path: str) -> Any:
    try:
        return storage_for(path).open_read(path)
    except OSError as error:
        raise path_error(error, path, "read") from error


def _lines(path: str, compression: str) -> Iterator[bytes]:
    with _read(path) as file:
        for line in _uncompressed(file, compression):
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _uncompressed(file: Any, compression: str) -> Any:
    if compression == "GZIP":
        return gzip.GzipFile(fileobj=file)
    return io.BytesIO(zlib.decompress(file.read())) if compression == "ZLIB" else file


def _equal_records(path: str, size: int, header: int, footer: int) -> Iterator[bytes]:
    with _read(path) as file:
        data = file.read()
    body = len(data) - header - footer
    if body % size:
        raise InvalidArgumentError(
            f"Excluding the header ({header} bytes) and footer ({footer} bytes), input file {path!r} has body length "
            f"{body} bytes, which is not an exact multiple of the record length ({size} bytes)."
        )
    for start in range(header, header + body, size):
        yield data[start : start + size]
