"""`gs.io`, `gs.queue`, `gs.debugging`, `gs.linalg`, `gs.nest`: names of TensorFlow 1.15 for older functions."""

import pathlib

import numpy as np
import pytest

import globalstep as gs

PAIRS = """
    io.FixedLenFeature=FixedLenFeature io.VarLenFeature=VarLenFeature io.parse_example=parse_example
    io.parse_single_example=parse_single_example io.decode_raw=decode_raw io.decode_csv=decode_csv
    io.decode_jpeg=image.decode_jpeg io.decode_base64=decode_base64 io.read_file=read_file io.write_file=write_file
    io.matching_files=matching_files io.match_filenames_once=train.match_filenames_once io.write_graph=train.write_graph
    io.TFRecordWriter=python_io.TFRecordWriter io.tf_record_iterator=python_io.tf_record_iterator
    io.gfile.GFile=gfile.GFile io.gfile.exists=gfile.Exists io.gfile.isdir=gfile.IsDirectory
    io.gfile.listdir=gfile.ListDirectory io.gfile.makedirs=gfile.MakeDirs io.gfile.rmtree=gfile.DeleteRecursively
    queue.FIFOQueue=FIFOQueue queue.RandomShuffleQueue=RandomShuffleQueue queue.PaddingFIFOQueue=PaddingFIFOQueue
    debugging.assert_equal=assert_equal debugging.Assert=Assert debugging.check_numerics=check_numerics
    debugging.assert_all_finite=verify_tensor_all_finite debugging.is_finite=is_finite
    linalg.matmul=matmul linalg.inv=matrix_inverse linalg.det=matrix_determinant linalg.solve=matrix_solve
    linalg.diag=matrix_diag linalg.tensor_diag=diag linalg.band_part=matrix_band_part linalg.norm=norm
    linalg.transpose=matrix_transpose linalg.l2_normalize=nn.l2_normalize
    nest.flatten=contrib.framework.nest.flatten nest.is_nested=contrib.framework.nest.is_sequence
"""


def named(path):
    value = gs
    for part in path.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("pair", PAIRS.split())
def test_a_later_name_is_the_older_function(pair):
    later, older = pair.split("=")
    assert named(later) is named(older)
    assert named(f"compat.v1.{later}") is named(older)


def test_files_match_any_of_several_patterns(tmp_path):
    for name in ("b.txt", "a.txt", "c.csv"):
        pathlib.Path(tmp_path, name).write_text(name)
    found = gs.io.gfile.glob([f"{tmp_path}/*.csv", f"{tmp_path}/*.txt"])
    assert [pathlib.Path(path).name for path in found] == ["c.csv", "a.txt", "b.txt"]


def test_an_example_is_written_and_parsed_by_later_names(tmp_path):
    path = str(tmp_path / "part.tfrecord")
    ints = gs.train.Feature(int64_list=gs.train.Int64List(value=[3]))
    with gs.io.TFRecordWriter(path) as writer:
        writer.write(gs.train.Example(features=gs.train.Features(feature={"label": ints})).SerializeToString())
    (record,) = gs.io.tf_record_iterator(path)
    with gs.Graph().as_default(), gs.Session() as session:
        label = gs.io.parse_single_example(record, {"label": gs.io.FixedLenFeature([], gs.int64)})["label"]
        assert session.run(label) == np.int64(3)
