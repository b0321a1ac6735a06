"""Slim's data sets, as programs describe and read them; the texts of errors are TensorFlow 1.15's."""

import io

import numpy as np
import pytest
from PIL import Image

import globalstep as tf
from globalstep.contrib import slim
from globalstep.contrib.slim.python.slim.data import dataset_data_provider, tfexample_decoder

PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
FEATURES = {
    "image/encoded": tf.FixedLenFeature((), tf.string, ""),
    "image/format": tf.FixedLenFeature((), tf.string, "png"),
    "label": tf.FixedLenFeature([1], tf.int64, [7]),
    "sizes": tf.FixedLenFeature([2], tf.int64, [2, 3]),
    "ids": tf.VarLenFeature(tf.int64),
    **{f"box/{side}": tf.VarLenFeature(tf.float32) for side in ("ymin", "xmin", "ymax", "xmax")},
}


def png():
    written = io.BytesIO()
    Image.fromarray(PICTURE).save(written, "PNG")
    return written.getvalue()


def example(number=0, contents=b"", kind=b"png"):
    kinds = {bytes: "bytes_list", int: "int64_list", float: "float_list"}
    sides = {f"box/{side}": [at / 10, at / 10 + 0.5] for at, side in enumerate(("ymin", "xmin", "ymax", "xmax"))}
    plain = {"image/encoded": [contents or png()], "image/format": [kind], "label": [number], "ids": list(range(6))}
    message = tf.train.Example()
    for key, values in {**sides, **plain}.items():
        getattr(message.features.feature[key], kinds[type(values[0])]).value.extend(values)
    return message.SerializeToString()


def items():
    decoder = slim.tfexample_decoder
    return {
        "image": decoder.Image(shape=[4, 4, 3]),
        "label": decoder.Tensor("label", shape=[]),
        "ids": decoder.Tensor("ids", shape_keys="sizes"),
        "boxes": decoder.BoundingBox(prefix="box/"),
        "twice": decoder.ItemHandlerCallback(["label"], lambda found: found["label"] * 2),
    }


@pytest.mark.parametrize(("contents", "kind"), [(b"", b"png"), (PICTURE.tobytes(), b"raw")])
def test_items_of_an_example(contents, kind):
    decoder = tfexample_decoder.TFExampleDecoder(FEATURES, items())
    found = dict(zip(decoder.list_items(), decoder.decode(tf.constant(example(1, contents, kind))), strict=True))
    assert found["image"].shape == (4, 4, 3)
    with tf.Session() as session:
        values = session.run(found)
    np.testing.assert_array_equal(values["image"], PICTURE)
    np.testing.assert_array_equal(values["ids"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_allclose(values["boxes"], [[0, 0.1, 0.2, 0.3], [0.5, 0.6, 0.7, 0.8]], rtol=1e-6)
    assert (values["label"], values["twice"]) == (1, [2])


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_provider_reads_every_record_of_all_files_once_an_epoch(tmp_path, shuffle):
    for part in range(2):
        with tf.python_io.TFRecordWriter(str(tmp_path / f"part-{part}")) as writer:
            for number in range(5):
                writer.write(example(5 * part + number))
    decoder = tfexample_decoder.TFExampleDecoder(FEATURES, {"label": tfexample_decoder.Tensor("label", shape=[])})
    dataset = slim.dataset.Dataset(str(tmp_path / "part-*"), tf.TFRecordReader, decoder, 10, {}, classes=10)
    provider = dataset_data_provider.DatasetDataProvider(
        dataset, num_readers=2, shuffle=shuffle, num_epochs=1, common_queue_capacity=6, common_queue_min=2
    )
    key, label = provider.get(["record_key", "label"])
    assert (dataset.classes, provider.num_samples(), set(provider.list_items())) == (10, 10, {"label", "record_key"})
    with tf.train.MonitoredSession() as session:
        found = []
        while not session.should_stop():
            found.append(session.run([label, key]))
    assert sorted(int(number) for number, _ in found) == list(range(10))
    assert {place.decode().partition(":")[0] for _, place in found} == {str(tmp_path / f"part-{n}") for n in range(2)}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: slim.parallel_reader.get_data_files("no*"), "No data files found in no"),
        (lambda: slim.data_provider.DataProvider({"a": 1}, 1).get(["b"]), "Item .b. is invalid. Valid entries include"),
        (lambda: tfexample_decoder.BoundingBox(["a"]), "BoundingBox expects 4 keys but got 1"),
        (lambda: tfexample_decoder.Tensor("a", "b", [1]), "Cannot specify both shape_keys and shape parameters"),
    ],
)
def test_what_is_refused(wrong, text):
    with pytest.raises(ValueError, match=text):
        wrong()
