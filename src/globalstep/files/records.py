"""Record files: the one format of TFRecord data files and TensorBoard's event files.

A record is, little-endian: uint64 length; uint32 masked CRC of those eight bytes; the data; uint32
masked CRC of the data. The CRC is CRC-32C (Castagnoli), masked so that a checksum stored among
checksummed bytes does no harm.

Source of the format: TensorFlow, core/lib/io/record_writer.h and lib/hash/crc32c.h.

Layer: shared. Imports nothing of globalstep but errors and storage.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import google_crc32c

from globalstep.errors import DataLossError
from globalstep.files.storage import path_error, storage_for

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_CHUNK = 1 << 24


def masked_crc32c(data: Any) -> int:
    """Compute the masked CRC-32C of `data`.

    Returns:
        The CRC turned right by 15 bits plus 0xa282ead8, modulo 2**32.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def encode_record(data: bytes) -> bytes:
    """Give the bytes of one record.

    Returns:
        `data` with its length and checksums, 16 bytes longer.
    """
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CHECKSUM.pack(masked_crc32c(length)), data, _CHECKSUM.pack(masked_crc32c(data))))


class TFRecordCompressionType:
    """Compression of a record file as a whole, by TensorFlow's names."""

    NONE = 0
    ZLIB = 1
    GZIP = 2


_COMPRESSIONS = {
    None: "",
    TFRecordCompressionType.NONE: "",
    TFRecordCompressionType.ZLIB: "ZLIB",
    TFRecordCompressionType.GZIP: "GZIP",
    "": "",
    "ZLIB": "ZLIB",
    "GZIP": "GZIP",
}


class TFRecordOptions:
    """Options that a record file's writer and reader must agree on.

    Args:
        compression_type: "", "ZLIB", "GZIP", or a `TFRecordCompressionType`.

    Raises:
        ValueError: If it is none of these.
    """

    def __init__(self, compression_type: str | int | None = None) -> None:
        if compression_type not in _COMPRESSIONS:
            raise ValueError(f"Not a valid compression_type: {compression_type!r}")
        self.compression_type: str = _COMPRESSIONS[compression_type]


def _compression(options: TFRecordOptions | str | int | None) -> str:
    return (options if isinstance(options, TFRecordOptions) else TFRecordOptions(options)).compression_type


class TFRecordWriter:
    """Writes a record file, replacing one of that name. Single thread.

    Args:
        path: Where to; a local path or a URL.
        options: Compression; default none.

    Raises:
        OpError: If the file cannot be opened.

    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "data.tfrecord")
    >>> with TFRecordWriter(path) as writer:
    ...     writer.write(b"one")
    >>> list(read_records(path))
    [b'one']
    """

    def __init__(self, path: str, options: TFRecordOptions | str | int | None = None) -> None:
        self._path = path
        kind = _compression(options)
        try:
            self._raw: BinaryIO = storage_for(path).open_write(path)
        except OSError as error:
            raise path_error(error, path, "write") from error
        self._file: Any = gzip.GzipFile(fileobj=self._raw, mode="wb") if kind == "GZIP" else self._raw
        self._zlib = zlib.compressobj() if kind == "ZLIB" else None

    def write(self, record: bytes) -> None:
        """Append one record.

        Args:
            record: Its data.
        """
        data = encode_record(record)
        self._put(data if self._zlib is None else self._zlib.compress(data))

    def flush(self) -> None:
        """Hand everything written so far to the file system."""
        if self._zlib is not None:
            self._put(self._zlib.flush(zlib.Z_SYNC_FLUSH))
        try:
            self._file.flush()
        except OSError as error:
            raise path_error(error, self._path, "write") from error

    def close(self) -> None:
        """Write what is left and close the file; closing twice does nothing."""
        if self._raw.closed:
            return
        try:
            if self._zlib is not None:
                self._file.write(self._zlib.flush())
            self._file.close()
        except OSError as error:
            raise path_error(error, self._path, "write") from error
        finally:
            self._raw.close()

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise path_error(error, self._path, "write") from error

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ZlibFile:
    """The uncompressed bytes of a zlib stream, read in order."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._decompressor = zlib.decompressobj()
        self._rest = b""

    def read(self, size: int) -> bytes:
        parts = [self._rest]
        have = len(self._rest)
        while have < size and (chunk := self._raw.read(1 << 16)):
            parts.append(self._decompressor.decompress(chunk))
            have += len(parts[-1])
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]


def read_records(path: str, options: TFRecordOptions | str | int | None = None) -> Iterator[bytes]:
    """Iterate over the records of a file; each is checked first. It is `tf.python_io.tf_record_iterator`, too.

    Yields:
        The data of each record.

    Raises:
        NotFoundError: If there is no such file.
        DataLossError: At a record whose checksum is wrong or that ends too early; the text names the
            file and the (uncompressed) byte at which the record begins. Records before it were given.
    """
    kind = _compression(options)
    try:
        raw = storage_for(path).open_read(path)
    except OSError as error:
        raise path_error(error, path, "read") from error
    with raw:
        source: Any = raw
        if kind:
            source = gzip.GzipFile(fileobj=raw) if kind == "GZIP" else _ZlibFile(raw)
        offset = 0
        while (record := _read_record(source, path, offset)) is not None:
            yield record
            offset += len(record) + _HEADER.size + _CHECKSUM.size


def _read_record(source: Any, path: str, offset: int) -> bytes | None:
    try:
        header = source.read(_HEADER.size)
        if not header:
            return None
        if len(header) < _HEADER.size:
            raise _truncated(path, offset)
        length, checksum = _HEADER.unpack(header)
        if masked_crc32c(header[: _LENGTH.size]) != checksum:
            raise _corrupted(path, offset, "length")
        body = _read_exactly(source, length + _CHECKSUM.size)
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise DataLossError(f"corrupted record at {offset} of {path}: {error}.") from error
    except OSError as error:
        raise path_error(error, path, "read") from error
    if len(body) < length + _CHECKSUM.size:
        raise _truncated(path, offset)
    data = body[:length]
    if masked_crc32c(data) != _CHECKSUM.unpack(body[length:])[0]:
        raise _corrupted(path, offset, "data")
    return data


def _read_exactly(source: Any, size: int) -> bytes:
    """Read `size` bytes, fewer at the end of the file; a false size allocates no more than there is."""
    parts = []
    while size and (part := source.read(min(size, _CHUNK))):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _truncated(path: str, offset: int) -> DataLossError:
    return DataLossError(
        f"truncated record at {offset} of {path}: the file ends within it. Its writer was interrupted, or "
        "is still writing; the records before it are whole."
    )


def _corrupted(path: str, offset: int, what: str) -> DataLossError:
    return DataLossError(
        f"corrupted record at {offset} of {path}: the checksum of its {what} is wrong. The file is damaged "
        "or no record file (check its compression); the records before it are whole."
    )
