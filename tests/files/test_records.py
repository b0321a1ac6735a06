"""The record format, against tensorboard's own reader and against damage."""

import gzip
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c as slow_masked_crc32c

from globalstep.errors import DataLossError, NotFoundError
from globalstep.files.records import (
    TFRecordCompressionType,
    TFRecordOptions,
    TFRecordWriter,
    encode_record,
    masked_crc32c,
    read_records,
)


@given(st.binary(max_size=300))
def test_checksum_is_that_of_tensorboard(data):
    assert masked_crc32c(data) == slow_masked_crc32c(data)


def write(path, records, options=None):
    with TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)


@pytest.mark.parametrize("options", [None, "", TFRecordOptions(TFRecordCompressionType.ZLIB), TFRecordOptions("GZIP")])
def test_records_come_back_in_order(tmp_path, options):
    records = [b"", b"a", bytes(range(256)) * 1000]
    write(tmp_path / "data", records, options)
    assert list(read_records(str(tmp_path / "data"), options)) == records


def test_a_flushed_zlib_stream_can_be_read_while_it_grows(tmp_path):
    with TFRecordWriter(str(tmp_path / "data"), "ZLIB") as writer:
        writer.write(b"one")
        writer.flush()
        assert list(read_records(str(tmp_path / "data"), "ZLIB")) == [b"one"]


def test_gzip_is_the_standard_format(tmp_path):
    write(tmp_path / "data", [b"one"], "GZIP")
    assert gzip.decompress((tmp_path / "data").read_bytes()) == encode_record(b"one")


def test_tensorboard_reads_what_is_written(tmp_path):
    write(tmp_path / "data", [b"one", b"two"])
    assert list(RawEventFileLoader(str(tmp_path / "data")).Load()) == [b"one", b"two"]


@pytest.mark.parametrize("cut", range(1, 19))
def test_a_cut_file_gives_the_whole_records_and_then_names_the_place(tmp_path, cut):
    path = tmp_path / "data"
    write(path, [b"one", b"two"])
    path.write_bytes(path.read_bytes()[:-cut])
    records = read_records(str(path))
    assert next(records) == b"one"
    with pytest.raises(DataLossError, match=f"truncated record at 19 of {path}"):
        next(records)


@pytest.mark.parametrize("position", range(19, 38))
def test_a_flipped_bit_anywhere_in_a_record_is_noticed(tmp_path, position):
    path = tmp_path / "data"
    write(path, [b"one", b"two"])
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    records = read_records(str(path))
    assert next(records) == b"one"
    with pytest.raises(DataLossError, match=f"corrupted record at 19 of {path}"):
        next(records)


def test_a_cut_compressed_file_is_data_loss(tmp_path):
    path = tmp_path / "data"
    write(path, [b"one" * 100], "GZIP")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataLossError, match=str(path)):
        list(read_records(str(path), "GZIP"))


def test_a_wrong_compression_is_named(tmp_path):
    write(tmp_path / "data", [b"one"])
    with pytest.raises(DataLossError, match="corrupted record at 0"):
        list(read_records(str(tmp_path / "data"), "ZLIB"))
    with pytest.raises(ValueError, match="Not a valid compression_type: 'LZ4'"):
        TFRecordOptions("LZ4")


def test_a_length_beyond_the_file_is_not_allocated(tmp_path):
    length = struct.pack("<Q", 1 << 40)
    (tmp_path / "data").write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"xx")
    with pytest.raises(DataLossError, match="truncated record at 0"):
        list(read_records(str(tmp_path / "data")))


def test_a_missing_file_or_directory_is_named(tmp_path):
    with pytest.raises(NotFoundError, match="nothing"):
        list(read_records(str(tmp_path / "nothing")))
    with pytest.raises(NotFoundError, match="nowhere"):
        TFRecordWriter(str(tmp_path / "nowhere" / "data"))
