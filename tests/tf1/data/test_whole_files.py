"""Datasets of batches of whole files."""

import numpy as np
import pytest

import globalstep as gs

experimental = gs.data.experimental
ROWS = 'id,price,kind,much\n1,1.5,a,3000000000\n2,,"b,c",2\n3,2,-,1\n'


def batches(dataset):
    following = gs.data.make_one_shot_iterator(dataset).get_next()
    found = []
    with gs.Session() as session:
        try:
            while True:
                found.append(session.run(following))
        except gs.errors.OutOfRangeError:
            return found


@pytest.fixture
def table(tmp_path):
    for name in ("1.csv", "2.csv"):
        (tmp_path / name).write_text(ROWS)
    return str(tmp_path / "*.csv")


def test_columns_of_csv_files_that_say_what_they_hold(table):
    dataset = experimental.make_csv_dataset(table, 4, label_name="id", num_epochs=1, shuffle=False, na_value="-")
    features, label = gs.data.make_initializable_iterator(dataset).get_next()
    dtypes = {name: node.dtype.name for name, node in features.items()}
    assert (label.dtype.name, dtypes) == ("int32", {"price": "float32", "kind": "string", "much": "int64"})
    (first, ids), (second, _) = batches(dataset)
    assert ids.tolist() == [1, 2, 3, 1]
    assert first["kind"].tolist() == [b"a", b"b,c", b"", b"a"]
    assert first["price"].tolist() == [1.5, 0, 2, 1.5]
    assert second["much"].tolist() == [2, 1]


def test_columns_of_csv_files_as_the_program_says(table):
    chosen = experimental.make_csv_dataset(
        table, 2, ["a", "b", "c", "d"], [7.0, gs.string], select_columns=["c", "b"], num_epochs=2, shuffle_seed=1
    )
    found = batches(chosen)
    assert len(found) == 6
    assert set(found[0]) == {"b", "c"}
    assert sorted(np.concatenate([batch["b"] for batch in found])) == sorted([1.5, 7, 2] * 4)
    endless = experimental.make_csv_dataset(table, 4, shuffle=False, select_columns=[0])
    following = gs.data.make_one_shot_iterator(endless).get_next()
    with gs.Session() as session:
        assert [session.run(following)["id"].tolist() for _ in range(2)] == [[1, 2, 3, 1], [2, 3, 1, 2]]


def test_examples_of_files(tmp_path):
    for name in ("1", "2"):
        with gs.python_io.TFRecordWriter(str(tmp_path / name)) as writer:
            for number in range(3):
                feature = gs.train.Feature(int64_list=gs.train.Int64List(value=[number]))
                features = gs.train.Features(feature={"x": feature, "y": feature})
                writer.write(gs.train.Example(features=features).SerializeToString())
    spec = {name: gs.FixedLenFeature([], gs.int64) for name in ("x", "y")}
    make = experimental.make_batched_features_dataset
    found = batches(make(str(tmp_path / "*"), 4, spec, label_key="y", num_epochs=1, shuffle=False))
    assert [(features["x"].tolist(), label.tolist()) for features, label in found] == [
        ([0, 1, 2, 0], [0, 1, 2, 0]),
        ([1, 2], [1, 2]),
    ]
    whole = batches(make([str(tmp_path / "1"), str(tmp_path / "2")], 4, spec, num_epochs=2, drop_final_batch=True))
    assert [sorted(batch) for batch in whole] == [["x", "y"]] * 3
    with pytest.raises(ValueError, match="must be one of the `features` keys"):
        make(str(tmp_path / "*"), 4, spec, label_key="z")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"header": False}, "Cannot infer column names without a header line"),
        ({"column_names": ["a", "a"]}, "Cannot have duplicate column names"),
        ({"select_columns": ["zzz"]}, "not one of the column names"),
        ({"select_columns": [9]}, "must be different columns"),
        ({"column_defaults": [1]}, "must have same length"),
        ({"label_name": "zzz"}, "must be one of the columns"),
        ({"ignore_errors": True}, "ignore_errors is not supported"),
    ],
)
def test_what_csv_files_do_not_give(table, options, text):
    with pytest.raises(ValueError, match=text):
        experimental.make_csv_dataset(table, 2, **options)
    with pytest.raises(ValueError, match="No files match"):
        experimental.make_csv_dataset(table + "x", 2)
