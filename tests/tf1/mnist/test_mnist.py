import gzip
import struct

import numpy as np
import pytest

import globalstep as gs
from globalstep.examples.tutorials.mnist import input_data, mnist
from globalstep.tf1.mnist.base import load_csv_with_header, load_csv_without_header, maybe_download
from globalstep.tf1.mnist.mnist import DataSet, read_data_sets
from globalstep.tf1.mnist.mnist_files import FILES, extract_images, extract_labels


def idx_files(folder, train=30, test=10, packed=True):
    """Files like MNIST's; each image is full of its number, each label its number's last digit."""
    for kind, count in (("train", train), ("t10k", test)):
        numbers = np.arange(count, dtype=np.uint8)
        images = np.repeat(numbers, 784).tobytes()
        contents = {
            f"{kind}-images-idx3-ubyte": struct.pack(">4I", 2051, count, 28, 28) + images,
            f"{kind}-labels-idx1-ubyte": struct.pack(">2I", 2049, count) + (numbers % 10).tobytes(),
        }
        for name, content in contents.items():
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return str(folder)


@pytest.mark.parametrize("packed", [True, False])
def test_sets_are_read(tmp_path, packed, capsys):
    data = input_data.read_data_sets(idx_files(tmp_path, packed=packed), one_hot=True, validation_size=5)
    assert [one.num_examples for one in data] == [25, 5, 10]
    assert data.train.images.dtype == np.float32
    assert data.train.images.shape == (25, 784)
    np.testing.assert_allclose(data.train.images[0], 5 / 255, rtol=1e-6)
    assert data.validation.labels.dtype == np.float64
    assert data.validation.labels.argmax(1).tolist() == [0, 1, 2, 3, 4]
    assert capsys.readouterr().out.count("Extracting") == 4


def test_images_are_left_as_they_are_on_request(tmp_path):
    data = read_data_sets(idx_files(tmp_path), dtype=gs.uint8, reshape=False, validation_size=0)
    assert data.train.images.shape == (30, 28, 28, 1)
    assert data.train.images.dtype == data.train.labels.dtype == np.uint8
    assert data.train.labels.tolist() == [number % 10 for number in range(30)]


def test_batches_are_full_and_each_epoch_has_all_images():
    images = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)
    data = DataSet(images, np.arange(10), dtype="uint8", seed=1)
    seen = [data.next_batch(4) for _ in range(5)]
    assert all(len(batch) == len(labels) == 4 for batch, labels in seen)
    order = np.concatenate([labels for _, labels in seen])
    assert sorted(order[:10]) == sorted(order[10:]) == list(range(10))
    assert order[:10].tolist() != list(range(10))
    assert np.concatenate([batch for batch, _ in seen]).ravel().tolist() == order.tolist()
    assert data.epochs_completed == 1


def test_a_seed_fixes_the_order_and_without_shuffling_there_is_the_files():
    images, labels = np.zeros((20, 1, 1, 1), np.uint8), np.arange(20)
    first, second = ([DataSet(images, labels, seed=7).next_batch(5)[1].tolist() for _ in range(2)] for _ in range(2))
    assert first == second
    assert DataSet(images, labels).next_batch(5, shuffle=False)[1].tolist() == [0, 1, 2, 3, 4]


def test_fake_data_needs_no_files(tmp_path):
    data = read_data_sets(str(tmp_path), fake_data=True, one_hot=True)
    images, labels = data.train.next_batch(3)
    assert np.shape(images) == (3, 784)
    assert labels[0] == [1] + [0] * 9
    assert data.train.num_examples == 10000


def test_files_that_are_not_there_are_named_and_how_to_get_them(tmp_path):
    idx_files(tmp_path)
    (tmp_path / FILES[2]).unlink()
    with pytest.raises(gs.errors.NotFoundError) as caught:
        read_data_sets(str(tmp_path))
    assert f"lacks {FILES[2]}. " in str(caught.value)
    assert f"curl -o {tmp_path}/{FILES[2]} https://" in str(caught.value)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_file_of_another_kind_or_cut_short_is_refused(tmp_path):
    idx_files(tmp_path, packed=False)
    labels = tmp_path / "train-labels-idx1-ubyte"
    with labels.open("rb") as file, pytest.raises(ValueError, match=r"Invalid magic number 2049 in MNIST image file: "):
        extract_images(file)
    labels.write_bytes(labels.read_bytes()[:20])
    with labels.open("rb") as file, pytest.raises(ValueError, match="cut short: 20 bytes of 38"):
        extract_labels(file)
    labels.write_bytes(b"")
    with labels.open("rb") as file, pytest.raises(ValueError, match="Invalid magic number"):
        extract_labels(file)


def test_a_validation_set_is_no_larger_than_what_there_is(tmp_path):
    with pytest.raises(ValueError, match=r"Validation size should be between 0 and 30. Received: 5000."):
        read_data_sets(idx_files(tmp_path))


def test_the_model_of_the_tutorial_trains():
    gs.set_random_seed(1)
    random = np.random.RandomState(0)
    images, labels = random.rand(20, mnist.IMAGE_PIXELS).astype(np.float32), random.randint(0, 10, 20)
    logits = mnist.inference(gs.constant(images), 64, 32)
    loss = mnist.loss(logits, gs.constant(labels.astype(np.int32)))
    train_op, correct = mnist.training(loss, 0.1), mnist.evaluation(logits, labels)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        first = session.run(loss)
        for _ in range(200):
            session.run(train_op)
        assert session.run(loss) < 0.5 * first
        assert session.run(correct) > 10


def test_csv_files_of_contrib_learn(tmp_path):
    (tmp_path / "with.csv").write_text("2,3,a,b\n1,2,3,0\n4,5,6,1\n")
    (tmp_path / "without.csv").write_text("0,1,2\n1,4,5\n")
    read = load_csv_with_header(str(tmp_path / "with.csv"), np.int64, np.float32)
    assert (read.data.tolist(), read.target.tolist()) == ([[1, 2, 3], [4, 5, 6]], [0, 1])
    read = gs.contrib.learn.datasets.base.load_csv_without_header(str(tmp_path / "without.csv"), int, float, 0)
    assert (read.data.tolist(), read.target.tolist()) == ([[1, 2], [4, 5]], [0, 1])
    assert load_csv_without_header is gs.contrib.learn.datasets.base.load_csv_without_header
    assert maybe_download("with.csv", str(tmp_path), "http://there") == str(tmp_path / "with.csv")
    with pytest.raises(gs.errors.NotFoundError, match="curl -o .*other.csv http://there"):
        maybe_download("other.csv", str(tmp_path), "http://there")
