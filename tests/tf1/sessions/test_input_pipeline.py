"""The input pipeline of a worker as programs build it: files, reader, parser, batches, monitored session."""

from collections import Counter

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1.data.example import Example, Feature, Features, FloatList, Int64List
from globalstep.tf1.ops.file_writer import FileWriterCache


@pytest.fixture(autouse=True)
def writers_are_closed():
    yield
    FileWriterCache.clear()


def train(fetches, **options):
    """Runs until the input ends; gives what each run fetched."""
    found = []
    with gs.train.MonitoredTrainingSession(log_step_count_steps=None, **options) as sess:
        while not sess.should_stop():
            found.append(sess.run(fetches))
    return found


def test_lines_of_files_are_trained_on_once_an_epoch(tmp_path):
    numbers = np.random.default_rng(0).normal(size=(3, 20, 2)).astype(np.float32)
    for index, part in enumerate(numbers):
        lines = [f"{100 * index + row},{x},{3 * x - 2 * z + 1},{z}" for row, (x, z) in enumerate(part)]
        (tmp_path / f"{index}.csv").write_text("id,x,y,z\n" + "\n".join(lines) + "\n")
    names = gs.train.match_filenames_once(str(tmp_path / "*.csv"))
    files = gs.train.string_input_producer(names, num_epochs=6)
    line = gs.TextLineReader(skip_header_lines=1).read(files)[1]
    number, x, y, z = gs.decode_csv(line, [[0], [0.0], [0.0], [0.0]])
    ids, inputs, wanted = gs.train.shuffle_batch(
        [number, gs.stack([x, z]), y], 10, capacity=50, min_after_dequeue=20, allow_smaller_final_batch=True
    )
    weights = gs.Variable(np.zeros((2, 1), np.float32), name="weights")
    bias = gs.Variable(0.0, name="bias")
    error = gs.squeeze(gs.matmul(inputs, weights), [1]) + bias - wanted
    loss = gs.reduce_mean(gs.square(error))
    step = gs.train.get_or_create_global_step()
    train_op = gs.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    gs.summary.scalar("loss", loss)
    found = train([train_op, loss, ids], checkpoint_dir=str(tmp_path / "run"), save_summaries_steps=10)
    used = Counter(np.concatenate([batch for _, _, batch in found]).tolist())
    assert used == dict.fromkeys((100 * index + row for index in range(3) for row in range(20)), 6)
    assert found[-1][1] < 0.01 < found[0][1]
    FileWriterCache.clear()
    (path,) = (tmp_path / "run").glob("events.out.tfevents.*")
    tags = {value.tag for event in gs.train.summary_iterator(str(path)) for value in event.summary.value}
    assert {"loss", "input_producer/fraction_of_32_full"} <= tags


def test_examples_of_record_files_become_batches(tmp_path):
    with gs.python_io.TFRecordWriter(str(tmp_path / "data.tfrecord")) as writer:
        for number in range(8):
            feature = {
                "label": Feature(int64_list=Int64List(value=[number])),
                "image": Feature(float_list=FloatList(value=[number, number / 2])),
            }
            writer.write(Example(features=Features(feature=feature)).SerializeToString())
    files = gs.train.string_input_producer([str(tmp_path / "data.tfrecord")], num_epochs=1)
    parsed = gs.parse_single_example(
        gs.TFRecordReader().read(files)[1],
        {"label": gs.FixedLenFeature([], gs.int64), "image": gs.FixedLenFeature([2], gs.float32)},
    )
    gs.train.get_or_create_global_step()
    batches = train(gs.train.batch(parsed, 4))
    assert [batch["label"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches[1]["image"].tolist() == [[number, number / 2] for number in range(4, 8)]


def test_a_damaged_file_ends_training_with_its_name(tmp_path):
    path = tmp_path / "data.tfrecord"
    with gs.python_io.TFRecordWriter(str(path)) as writer:
        writer.write(b"one")
    path.write_bytes(path.read_bytes()[:-1])
    files = gs.train.string_input_producer([str(path)], num_epochs=1)
    record = gs.train.batch(gs.TFRecordReader().read(files)[1], 1)
    gs.train.get_or_create_global_step()
    with pytest.raises(gs.errors.DataLossError, match="truncated record at 0 of .*data.tfrecord"):
        train(record)
