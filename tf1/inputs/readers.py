"""Readers: from a queue of file names to keys and records.

Follows TensorFlow 1.15, python/ops/io_ops.py.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.files.records import TFRecordOptions, read_records
from globalstep.tf1.data.elements import text_of
from globalstep.tf1.data.files import open_to_read
from globalstep.tf1.graph.graph import Node, as_node, name_scope, tuple_item
from globalstep.tf1.inputs.queue_base import QueueBase
from globalstep.tf1.inputs.queue_state import QueueState

#: A key and a record.
Pair = tuple[str, bytes]


class ReaderRead(NamedTuple):
    """The result of `read`.

    Attributes:
        key: Where the record comes from, a scalar string node.
        value: The record, a scalar string node.
    """

    key: Node
    value: Node


class ReaderReadUpTo(NamedTuple):
    """The result of `read_up_to`.

    Attributes:
        keys: Where the records come from, a string node [n].
        values: The records, a string node [n].
    """

    keys: Node
    values: Node


class ReaderBase:
    """Turns work units (usually file names) into records. Its state belongs to this process.

    Several threads may run `read`; each gets records of its own.

    Args:
        name: Name of the reader's nodes.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or type(self).__name__
        # Guards the rest. A reader that has run out waits for the next name under it, as all that want
        # to read must; taken before the queue's own lock.
        self._lock = threading.Lock()
        self._records: Iterator[Pair] | None = None
        self._produced = 0
        self._completed = 0

    def records(self, work: str) -> Iterator[Pair]:
        """Iterate over the keys and records of one work unit.

        Args:
            work: The unit, for example a file name.
        """
        raise TypeError(f"{type(self).__name__} says nothing about how to read; use one of its subclasses.")

    def read(self, queue: QueueBase | Node, name: str | None = None) -> ReaderRead:
        """Make the nodes of the next key and record.

        Args:
            queue: Where the work units come from.
            name: Name of the node; default the reader's name and "Read".

        Returns:
            `key` and `value`, two scalar string nodes.

        Raises:
            OutOfRangeError: When run, if there is none left and the queue is closed.
            NotFoundError: When run, if a file is not there.
            DataLossError: When run, if a file is damaged.
        """

        def fn(state: QueueState) -> Any:
            ((key, value),) = self._next(state, 1)
            return key.encode(), value

        return ReaderRead(*self._pair("ReaderReadV2", "Read", [_ref(queue)], fn, (), name))

    def read_up_to(self, queue: QueueBase | Node, num_records: Any, name: str | None = None) -> ReaderReadUpTo:
        """Make the nodes of the next keys and records of one work unit, at least one.

        Args:
            queue: Where the work units come from.
            num_records: How many at most.
            name: Name of the node; default the reader's name and "ReadUpTo".

        Returns:
            `keys` and `values`, two string nodes of one dimension.
        """

        def fn(state: QueueState, limit: Any) -> Any:
            pairs = [(key.encode(), value) for key, value in self._next(state, int(limit))]
            return tuple(np.array(column, dtype=object) for column in zip(*pairs, strict=True))

        inputs = [_ref(queue), as_node(num_records, name="num_records")]
        return ReaderReadUpTo(*self._pair("ReaderReadUpToV2", "ReadUpTo", inputs, fn, [None], name))

    def num_records_produced(self, name: str | None = None) -> Node:
        """Make the int64 node of how many records were read."""
        return self._count("ReaderNumRecordsProducedV2", lambda: np.int64(self._produced), name)

    def num_work_units_completed(self, name: str | None = None) -> Node:
        """Make the int64 node of how many work units were read to their end."""
        return self._count("ReaderNumWorkUnitsCompletedV2", lambda: np.int64(self._completed), name)

    def reset(self, name: str | None = None) -> Node:
        """Make the operation that leaves the present work unit and counts anew."""

        def fn() -> None:
            with self._lock:
                self._records = None
                self._produced = self._completed = 0

        return Node("ReaderResetV2", fn=fn, name=name or f"{self._name}Reset", operation=True, stateful=True)

    def _next(self, state: QueueState, limit: int) -> list[Pair]:
        if limit < 1:
            raise InvalidArgumentError(f"A reader gives 1 record or more, not {limit}.")
        pairs: list[Pair] = []
        with self._lock:
            while not pairs:
                if self._records is None:
                    (work,) = state.dequeue(1)[0]
                    self._records = self.records(text_of(work))
                try:
                    for pair in self._records:
                        pairs.append(pair)
                        if len(pairs) == limit:
                            break
                    else:
                        self._records = None
                        self._completed += 1
                except Exception:
                    # A damaged file is left: the next call goes on with the next one.
                    self._records = None
                    raise
            self._produced += len(pairs)
        return pairs

    def _pair(
        self, op_type: str, what: str, inputs: list[Node], fn: Any, shape: Any, name: str | None
    ) -> tuple[Node, Node]:
        node = Node(op_type, inputs, fn=fn, name=name or f"{self._name}{what}", stateful=True)
        with name_scope(f"{node.op_name}/"):
            key, value = (
                tuple_item(node, index, name=own, dtype="string", shape=shape)
                for index, own in enumerate(("key", "value"))
            )
        return key, value

    def _count(self, op_type: str, fn: Any, name: str | None) -> Node:
        own = name or f"{self._name}{op_type.removeprefix('Reader').removesuffix('V2')}"
        return Node(op_type, fn=fn, name=own, dtype="int64", shape=(), stateful=True)


class TFRecordReader(ReaderBase):
    """Gives the records of TFRecord files; keys are "file:offset".

    Args:
        name: Name of the reader's nodes.
        options: Compression of the files.
    """

    def __init__(self, name: str | None = None, options: TFRecordOptions | None = None) -> None:
        super().__init__(name)
        self._options = options

    def records(self, work: str) -> Iterator[Pair]:
        """See ReaderBase."""
        offset = 0
        for record in read_records(work, self._options):
            yield f"{work}:{offset}", record
            offset += len(record) + 16


class TextLineReader(ReaderBase):
    """Gives the lines of text files, without their ends; keys are "file:line", lines counted from 1.

    Args:
        skip_header_lines: Lines to leave out at the beginning of each file.
        name: Name of the reader's nodes.
    """

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self._skipped = skip_header_lines or 0

    def records(self, work: str) -> Iterator[Pair]:
        """See ReaderBase."""
        with open_to_read(work) as file:
            for number, line in enumerate(file, start=1):
                if number > self._skipped:
                    yield f"{work}:{number}", line.removesuffix(b"\n").removesuffix(b"\r")


class WholeFileReader(ReaderBase):
    """Gives each file as one record; keys are file names."""

    def records(self, work: str) -> Iterator[Pair]:
        """See ReaderBase."""
        with open_to_read(work) as file:
            yield work, file.read()


_DECODERS: dict[str, Callable[..., bytes]] = {"": bytes, "GZIP": gzip.decompress, "ZLIB": zlib.decompress}


class FixedLengthRecordReader(ReaderBase):
    """Gives records of `record_bytes` bytes each; keys are "file:number", counted from 0.

    Args:
        record_bytes: Length of a record.
        header_bytes: Length of what stands before the first one.
        footer_bytes: Length of what stands behind the last one.
        hop_bytes: From the beginning of one record to that of the next; default `record_bytes`.
        name: Name of the reader's nodes.
        encoding: "GZIP" or "ZLIB" for compressed files.

    Raises:
        ValueError: If a length makes no sense.
    """

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        super().__init__(name)
        self._decode = _DECODERS[encoding or ""]
        self._size = record_bytes
        self._header = header_bytes or 0
        self._footer = footer_bytes or 0
        self._hop = hop_bytes or record_bytes
        if record_bytes < 1 or min(self._header, self._footer, self._hop) < 0:
            raise ValueError(
                f"record_bytes must be positive and the others not negative, got {record_bytes}, "
                f"{header_bytes}, {footer_bytes}, {hop_bytes}."
            )

    def records(self, work: str) -> Iterator[Pair]:
        """See ReaderBase.

        Raises:
            InvalidArgumentError: If the records do not fill the file.
        """
        with open_to_read(work) as file:
            data = self._decode(file.read())
        body = len(data) - self._header - self._footer
        if body and (body < self._size or (body - self._size) % self._hop):
            raise InvalidArgumentError(
                f"Excessive data in {work}: {body} bytes between header and footer are no whole number of "
                f"records of {self._size} bytes, {self._hop} bytes apart."
            )
        for number, start in enumerate(range(self._header, self._header + body - self._size + 1, self._hop)):
            yield f"{work}:{number}", data[start : start + self._size]


class IdentityReader(ReaderBase):
    """Gives each work unit itself, as key and record."""

    def records(self, work: str) -> Iterator[Pair]:
        """See ReaderBase."""
        yield work, work.encode()


def _ref(queue: QueueBase | Node) -> Node:
    return queue if isinstance(queue, Node) else queue.queue_ref
