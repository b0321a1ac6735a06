"""Parsing: CSV, raw bytes and Examples, with the texts of what does not fit."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.data.example import BytesList, Example, Feature, Features, FloatList, Int64List
from globalstep.tf1.graph.graph import Graph, as_node
from globalstep.tf1.ops import parsing_ops as parsing


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def value(node):
    """Evaluates a node without a session, which parsing does not need."""
    return node.fn(*(value(source) for source in node.inputs))


def test_csv_columns_have_the_dtypes_of_their_defaults():
    columns = parsing.decode_csv(['1,2.5,"a,b",', "2,,c,7"], [[0], [1.5], [""], np.array([9])])
    assert [column.dtype.name for column in columns] == ["int32", "float32", "string", "int64"]
    assert columns[0].shape == [2]
    assert [value(column).tolist() for column in columns] == [[1, 2], [2.5, 1.5], [b"a,b", b"c"], [9, 7]]
    single = parsing.decode_csv("4;NA", [[0], [8]], field_delim=";", na_value="NA")
    assert [int(value(column)) for column in single] == [4, 8]
    assert [value(column).item() for column in parsing.decode_csv('"a', [[""]], use_quote_delim=False)] == [b'"a']
    assert value(parsing.decode_csv("1,2,3", [[0]], select_cols=[2])[0]) == 3
    assert value(parsing.decode_csv(['"a""b\n"', '""'], [["c"]])[0]).tolist() == [b'a"b\n', b"c"]
    assert value(parsing.decode_csv(["0x10", " 2.5", "-inf"], [[0.0]])[0]).tolist() == [16.0, 2.5, -np.inf]


@pytest.mark.parametrize(
    ("records", "defaults", "columns", "error"),
    [
        (["1,2", "1,2,3"], [[0], [0]], None, "Expect 2 fields but have 3 in record 1"),
        (["1,b"], [[0], [0]], None, "Field 1 in record 0 is not a valid int32: b"),
        (["1", "2147483648"], [[0]], None, "Field 0 in record 1 is not a valid int32: 2147483648"),
        (["9" * 25], [np.zeros(1, np.int64)], None, "Field 0 in record 0 is not a valid int64: 9999"),
        (["1_0"], [[0.0]], None, "Field 0 in record 0 is not a valid float: 1_0"),
        ([",1"], [np.zeros(0, np.float32), [0]], None, "Field 0 is required but missing in record 0!"),
        (["1,2"], [[0], [0]], [0, 4], "Expect 2 fields but have 1 in record 0"),
        (['a"b'], [["a"]], None, "Unquoted fields cannot have quotes/CRLFs inside"),
        (['1,"a'], [[0], ["a"]], None, "Quoted field has to end with quote followed by delim or end"),
        (["1"], [[[0]]], None, "Shape must be at most rank 1 but is rank 2"),
        (["1"], [[0, 1]], None, "Shape of a default must be a length-0 or length-1 vector"),
        (["1,2"], [[0]], [0, 1], "Length of select_cols and record_defaults do not match"),
        (["1,2"], [[0], [1]], [1, 0], "select_cols is not strictly increasing"),
        (["1,2"], [[0], [1]], [-1, 0], "select_cols contains negative values"),
    ],
)
def test_csv_that_does_not_fit_is_refused(records, defaults, columns, error):
    with pytest.raises((InvalidArgumentError, ValueError), match=error):
        value(parsing.decode_csv(records, defaults, select_cols=columns)[0])


def test_raw_bytes_are_numbers():
    node = parsing.decode_raw(as_node(np.array([b"\x01\x00\x02\x00", b"\x03\x00\x04\x00"], object)), "int16")
    assert value(node).tolist() == [[1, 2], [3, 4]]
    assert node.shape == [2, None]
    big = parsing.decode_raw(as_node(np.array(b"\x00\x01", object)), "uint16", little_endian=False)
    assert value(big).tolist() == [1]
    with pytest.raises(InvalidArgumentError, match="has length 3 that is not a multiple of 2"):
        value(parsing.decode_raw("abc", "int16"))
    with pytest.raises(InvalidArgumentError, match=r"the same size, but they have \[1, 2\]"):
        value(parsing.decode_raw(["a", "bc"], "uint8"))


def example(**features):
    kinds = {float: ("float_list", FloatList), int: ("int64_list", Int64List), bytes: ("bytes_list", BytesList)}
    made = {}
    for name, values in features.items():
        field, kind = kinds[type(values[0])]
        made[name] = Feature(**{field: kind(value=values)})
    return Example(features=Features(feature=made)).SerializeToString()


def test_one_example_becomes_nodes_of_its_features():
    found = parsing.parse_single_example(
        example(image=[0.5, 1.5], label=[3], name=[b"x"]),
        {
            "image": parsing.FixedLenFeature([2, 1], "float32"),
            "label": parsing.FixedLenFeature([], "int64"),
            "name": parsing.FixedLenFeature((), "string"),
            "weight": parsing.FixedLenFeature([], "float32", default_value=7.0),
        },
    )
    assert found["image"].shape == [2, 1]
    assert value(found["image"]).tolist() == [[0.5], [1.5]]
    assert value(found["label"]) == 3
    assert value(found["label"]).dtype == np.int64
    assert value(found["name"]) == b"x"
    assert value(found["weight"]) == 7.0


def test_text_that_fills_is_bytes_like_other_strings():
    feature = gs.FixedLenFeature((1, 2), gs.string, default_value=["a", "b"])
    nodes = [gs.parse_single_example(b"", {"x": feature})["x"], gs.sparse_to_dense([0], [2], "a", "b")]
    for node in [*nodes, gs.pad(gs.constant(["a"]), [[0, 1]], constant_values="b")]:
        assert value(node).ravel().tolist() == [b"a", b"b"]


def test_a_batch_of_examples_with_features_that_vary():
    batch = as_node(np.array([example(ids=[1, 2, 3]), example(ids=[4]), example(x=[1.0])], object))
    ids = parsing.parse_example(batch, {"ids": parsing.VarLenFeature("int64")})["ids"]
    assert value(ids.indices).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0]]
    assert value(ids.values).tolist() == [1, 2, 3, 4]
    assert value(ids.dense_shape).tolist() == [3, 3]
    dense = parsing.sparse_tensor_to_dense(ids, default_value=-1)
    assert value(dense).tolist() == [[1, 2, 3], [4, -1, -1], [-1, -1, -1]]
    one = parsing.parse_single_example(example(tags=[b"a", b"b"]), {"tags": parsing.VarLenFeature("string")})
    assert value(one["tags"].indices).tolist() == [[0], [1]]
    assert value(parsing.sparse_tensor_to_dense(one["tags"])).tolist() == [b"a", b"b"]
    fixed = parsing.parse_example(
        as_node(np.array([example(x=[1.0])], object)), {"x": parsing.FixedLenFeature([], "float32")}
    )["x"]
    assert fixed.shape == [1]
    assert value(fixed).tolist() == [1.0]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (example(y=[1.0]), r"Example 0: Feature x \(data type: float32\) is required but could not be found"),
        (example(x=[1]), "key x: Data types don't match. Data type: int64_list but expected type: float_list"),
        (example(x=[1.0, 2.0]), "key x: Number of values != expected. values size: 2 but output shape"),
        (b"\xff\xff", "Could not parse example input, record 0"),
    ],
)
def test_an_example_that_does_not_fit_is_refused(data, text):
    node = parsing.parse_single_example(as_node(np.array(data, object)), {"x": parsing.FixedLenFeature([], "float32")})
    with pytest.raises(InvalidArgumentError, match=text):
        value(node["x"])


def test_features_are_checked():
    with pytest.raises(ValueError, match="features was None"):
        parsing.parse_example(["x"], {})
    with pytest.raises(ValueError, match="Feature 'x' has dtype int32"):
        parsing.parse_example(["x"], {"x": parsing.FixedLenFeature([], "int32")})


def sequence(**lists):
    made = {
        key: gs.train.FeatureList(
            feature=[gs.train.Feature(int64_list=gs.train.Int64List(value=entry)) for entry in entries]
        )
        for key, entries in lists.items()
    }
    return gs.train.SequenceExample(
        feature_lists=gs.train.FeatureLists(feature_list=made)
    ).SerializeToString()  # fmt: skip


#: Of the SequenceExamples below; tests/golden/values/sequence_cases.py has the values of those that parse.
PAIRS = {"a": gs.FixedLenSequenceFeature([2], gs.int64)}


@pytest.mark.parametrize(
    ("data", "features", "text"),
    [
        (b"\xff", PAIRS, "Could not parse example input"),
        (sequence(), PAIRS, "Feature list 'a' is required but could not be found"),
        (sequence(a=[[1, 2], [3]]), PAIRS, r"Key: a, Index: 1.*values size: 1"),
        (sequence(a=[[1, 2]]), {"a": gs.FixedLenSequenceFeature([2], gs.float32)}, "Data types don't match"),
    ],
)
def test_what_does_not_parse(data, features, text):
    _, lists = gs.io.parse_single_sequence_example(data, sequence_features=features)
    with gs.Session() as session, pytest.raises(gs.errors.InvalidArgumentError, match=text):
        session.run(lists["a"])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (({}, {}), "Missing features"),
        ((PAIRS, {}), "Unsupported FixedLenSequenceFeature"),
        (({}, {"a": gs.FixedLenFeature([], gs.int64)}), "Unsupported FixedLenFeature"),
        (({"a": gs.VarLenFeature(gs.int32)}, {}), "has dtype"),
    ],
)
def test_features_that_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        gs.parse_single_sequence_example(sequence(), *given)


def test_entries_of_examples_that_are_refused():
    with pytest.raises(ValueError, match="requires allow_missing to be True"):
        gs.parse_example([b""], PAIRS)
    pairs = {"a": gs.FixedLenSequenceFeature([2], gs.int64, allow_missing=True)}
    feature = gs.train.Feature(int64_list=gs.train.Int64List(value=[1, 2, 3]))
    example = gs.train.Example(features=gs.train.Features(feature={"a": feature})).SerializeToString()
    with gs.Session() as session, pytest.raises(gs.errors.InvalidArgumentError, match="not a multiple of stride"):
        session.run(gs.parse_example([example], pairs)["a"])


def placed(places, values, other=None):
    lists = {
        "i": Feature(int64_list=Int64List(value=places)),
        "j": Feature(int64_list=Int64List(value=places if other is None else other)),
        "v": Feature(float_list=FloatList(value=values)),
    }
    return Example(features=Features(feature=lists)).SerializeToString()


def sparse(parsed):
    return [value(part).tolist() for part in (parsed.indices, parsed.values, parsed.dense_shape)]


def test_a_sparse_feature_is_places_and_values_of_other_features():
    feature = gs.SparseFeature(index_key="i", value_key="v", dtype=gs.float32, size=10)
    batch = [placed([3, 1], [5.0, 6.0]), placed([], []), placed([9], [7.0])]
    parsed = parsing.parse_example(batch, {"f": feature, "v": gs.VarLenFeature(gs.float32)})
    assert sparse(parsed["f"]) == [[[0, 1], [0, 3], [2, 9]], [6.0, 5.0, 7.0], [3, 10]]
    assert sparse(parsed["v"])[1] == [5.0, 6.0, 7.0]
    single = parsing.parse_single_example(batch[0], {"f": feature})["f"]
    assert sparse(single) == [[[1], [3]], [6.0, 5.0], [10]]
    in_order = gs.SparseFeature("i", "v", gs.float32, 10, already_sorted=True)
    assert sparse(parsing.parse_single_example(batch[0], {"f": in_order})["f"]) == [[[3], [1]], [5.0, 6.0], [10]]


def test_a_sparse_feature_of_several_dimensions():
    feature = gs.SparseFeature(["i", "j"], "v", gs.float32, [10, 20])
    parsed = parsing.parse_example([placed([3, 3], [5.0, 6.0], [2, 1])], {"f": feature})["f"]
    assert sparse(parsed) == [[[0, 3, 1], [0, 3, 2]], [6.0, 5.0], [1, 10, 20]]
    assert parsed.indices.shape.as_list() == [None, 3]


def test_a_sparse_feature_that_does_not_fit_is_refused():
    feature = gs.SparseFeature("i", "v", gs.float32, 10)
    with pytest.raises(InvalidArgumentError, match="Example 1, key f: v has 2 values, and i has 1 places"):
        value(parsing.parse_example([placed([], []), placed([1], [5.0, 6.0])], {"f": feature})["f"].values)
    for wrong, text in (
        (gs.SparseFeature(["i", "j"], "v", gs.float32, [10]), "equal lengths"),
        (gs.SparseFeature(None, "v", gs.float32, 10), "Missing index_key"),
        (gs.SparseFeature("i", "v", gs.int32, 10), "dtype"),
    ):
        with pytest.raises(ValueError, match=text):
            parsing.parse_example([placed([], [])], {"f": wrong})
