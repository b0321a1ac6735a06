"""Readers: keys and records of each kind of file, the end of files and of input, damage, sharing."""

import threading

import numpy as np
import pytest

from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.errors import DataLossError, InvalidArgumentError, NotFoundError, OutOfRangeError
from globalstep.files.records import TFRecordOptions, TFRecordWriter
from globalstep.tf1.inputs import readers
from globalstep.tf1.inputs.inputs import string_input_producer
from globalstep.tf1.inputs.queue_runner import start_queue_runners
from globalstep.tf1.inputs.queues import FIFOQueue


def queue_of(sess, *names):
    queue = FIFOQueue(100, "string", shapes=[()])
    sess.run(queue.enqueue_many([list(map(str, names))]))
    sess.run(queue.close())
    return queue


def everything(sess, node):
    found = []
    while True:
        try:
            *keys, record = sess.run(node)
            found.append((*(key.decode() for key in keys), record))
        except OutOfRangeError:
            return found


def test_lines_have_no_ends_and_keys_with_numbers(sess, tmp_path):
    (tmp_path / "a").write_bytes(b"head\none\r\n\ntwo")
    (tmp_path / "b").write_bytes(b"head\nthree\n")
    a, b = tmp_path / "a", tmp_path / "b"
    reader = readers.TextLineReader(skip_header_lines=1)
    pair = reader.read(queue_of(sess, a, b))
    assert pair[0].dtype.name == "string"
    assert pair[1].shape == ()
    assert everything(sess, pair) == [(f"{a}:2", b"one"), (f"{a}:3", b""), (f"{a}:4", b"two"), (f"{b}:2", b"three")]
    assert sess.run([reader.num_records_produced(), reader.num_work_units_completed()]) == [4, 2]


def test_records_have_offsets(sess, tmp_path):
    path = tmp_path / "data"
    with TFRecordWriter(str(path), "GZIP") as writer:
        writer.write(b"one")
        writer.write(b"three")
    reader = readers.TFRecordReader(options=TFRecordOptions("GZIP"))
    assert everything(sess, reader.read(queue_of(sess, path))) == [(f"{path}:0", b"one"), (f"{path}:19", b"three")]


def test_whole_files_and_names_themselves(sess, tmp_path):
    (tmp_path / "a").write_bytes(b"all\nof it")
    name = str(tmp_path / "a")
    assert everything(sess, readers.WholeFileReader().read(queue_of(sess, name))) == [(name, b"all\nof it")]
    assert everything(sess, readers.IdentityReader().read(queue_of(sess, "x", "y"))) == [("x", b"x"), ("y", b"y")]


def test_records_of_fixed_length(sess, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"HHaabbccF")
    reader = readers.FixedLengthRecordReader(2, header_bytes=2, footer_bytes=1)
    expected = [(f"{path}:0", b"aa"), (f"{path}:1", b"bb"), (f"{path}:2", b"cc")]
    assert everything(sess, reader.read(queue_of(sess, path))) == expected
    hopping = readers.FixedLengthRecordReader(3, header_bytes=2, footer_bytes=1, hop_bytes=1)
    assert [record for _, record in everything(sess, hopping.read(queue_of(sess, path)))] == [
        b"aab",
        b"abb",
        b"bbc",
        b"bcc",
    ]
    odd = readers.FixedLengthRecordReader(4, header_bytes=2)
    with pytest.raises(InvalidArgumentError, match=f"Excessive data in {path}: 7 bytes"):
        sess.run(odd.read(queue_of(sess, path)))
    with pytest.raises(ValueError, match="record_bytes must be positive"):
        readers.FixedLengthRecordReader(0)


def test_several_records_at_once_stay_within_a_file(sess):
    keys, values = readers.IdentityReader().read_up_to(queue_of(sess, "x", "y"), 5)
    assert keys.shape == [None]
    assert [sess.run(values).tolist() for _ in range(2)] == [[b"x"], [b"y"]]
    with pytest.raises(InvalidArgumentError, match="A reader gives 1 record or more, not 0"):
        sess.run(readers.IdentityReader().read_up_to(queue_of(sess, "x"), 0))


def test_a_damaged_or_missing_file_is_named_and_left(sess, tmp_path):
    bad, good = tmp_path / "bad", tmp_path / "good"
    for path in (bad, good):
        with TFRecordWriter(str(path)) as writer:
            writer.write(b"one")
    bad.write_bytes(good.read_bytes()[:-1])
    pair = readers.TFRecordReader().read(queue_of(sess, bad, tmp_path / "none", good))
    with pytest.raises(DataLossError, match=f"truncated record at 0 of {bad}"):
        sess.run(pair)
    with pytest.raises(NotFoundError, match="none"):
        sess.run(pair)
    assert sess.run(pair[1]) == b"one"


def test_a_reset_leaves_the_file_and_counts_anew(sess, tmp_path):
    (tmp_path / "a").write_text("1\n2\n")
    reader = readers.TextLineReader()
    pair = reader.read(queue_of(sess, tmp_path / "a", tmp_path / "a"))
    assert sess.run(pair[1]) == b"1"
    sess.run(reader.reset())
    assert sess.run(reader.num_records_produced()) == 0
    assert sess.run(pair[1]) == b"1"


def test_a_reader_of_no_kind_says_so(sess):
    with pytest.raises(TypeError, match="ReaderBase says nothing about how to read"):
        sess.run(readers.ReaderBase().read(queue_of(sess, "x")))


def test_threads_share_a_reader_without_losing_a_line(sess, tmp_path):
    for name in "abcd":
        (tmp_path / name).write_text("".join(f"{name}{number}\n" for number in range(50)))
    names = [str(tmp_path / name) for name in "abcd"]
    value = readers.TextLineReader().read(string_input_producer(names, num_epochs=1))[1]
    coord = Coordinator()
    runners = start_queue_runners(sess, coord)
    found = []
    threads = [
        threading.Thread(target=lambda: found.extend(everything(sess, [value])), name=f"reading-{index}")
        for index in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    coord.request_stop()
    coord.join(runners, stop_grace_period_secs=10)
    assert sorted(record.decode() for (record,) in found) == sorted(
        f"{name}{number}" for name in "abcd" for number in range(50)
    )
    assert np.unique(found).size == 200
