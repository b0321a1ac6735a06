"""Feature columns: what they refuse, are equal to, and read; tests/golden/values has TensorFlow's numbers."""

import numpy as np
import pytest

import globalstep as gs

fc = gs.feature_column


def ready(session):
    session.run([gs.global_variables_initializer(), gs.tables_initializer()])


def test_columns_read_examples(session):
    price, color = fc.numeric_column("price", default_value=7.0), fc.categorical_column_with_hash_bucket("color", 5)
    count = fc.categorical_column_with_identity("count", 4)
    columns = [price, fc.bucketized_column(price, [3.0]), fc.indicator_column(count), fc.embedding_column(color, 2)]
    cross = fc.crossed_column(["color", "shape", count], 5)
    weighted = fc.weighted_categorical_column(color, "weight")
    spec = fc.make_parse_example_spec([*columns, cross, weighted])
    assert spec == {
        "price": gs.FixedLenFeature([1], gs.float32, (7.0,)),
        "color": gs.VarLenFeature(gs.string),
        "shape": gs.VarLenFeature(gs.string),
        "count": gs.VarLenFeature(gs.int64),
        "weight": gs.VarLenFeature(gs.float32),
    }
    features = {
        "color": gs.train.Feature(bytes_list=gs.train.BytesList(value=[b"red"])),
        "count": gs.train.Feature(int64_list=gs.train.Int64List(value=[2, 2, 1])),
    }
    example = gs.train.Example(features=gs.train.Features(feature=features)).SerializeToString()
    layer = fc.input_layer(gs.parse_example([example], fc.make_parse_example_spec(columns)), columns)
    assert layer.shape.as_list()[-1] == 1 + 2 + 4 + 2
    ready(session)
    found = session.run(layer)[0]
    # By name: color_embedding, count_indicator, price, price_bucketized.
    assert found[2:].tolist() == [0, 1, 2, 0, 7, 0, 1]


def test_a_vocabulary_from_a_file(session, tmp_path):
    path = tmp_path / "words"
    path.write_text("red\ngreen\nblue\n")
    whole = fc.categorical_column_with_vocabulary_file("color", str(path), num_oov_buckets=2)
    part = fc.categorical_column_with_vocabulary_file("color", str(path), vocabulary_size=1, default_value=0)
    assert (whole.num_buckets, part.num_buckets) == (5, 1)
    features = {"color": gs.constant(["blue", "red", "pink"])}
    both = [fc.input_layer(features, fc.indicator_column(column)) for column in (whole, part)]
    ready(session)
    found, first = session.run(both)
    assert found[:2].tolist() == [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0]]
    assert found[2, 3:].sum() == 1
    assert first.tolist() == [[1], [1], [1]]


def test_what_belongs_to_a_column(session):
    price = fc.numeric_column("price")
    color = fc.embedding_column(fc.categorical_column_with_hash_bucket("color", 5), 2)
    features = {"price": [[1.0], [2.0]], "color": [["red"], ["blue"]]}
    variables, outputs, weights = {}, {}, {}
    layer = fc.input_layer(features, {"a": price, "b": color}, cols_to_vars=variables, cols_to_output_tensors=outputs)
    fc.linear_model(features, [price], cols_to_vars=weights, weight_collections=["mine"])
    assert {column: [each.op.name for each in made] for column, made in variables.items()} == {
        price: [], color: ["input_layer/color_embedding/embedding_weights"]
    }  # fmt: skip
    ready(session)
    whole, first, second = session.run([layer, outputs[color], outputs[price]])
    assert np.array_equal(whole, np.concatenate([first, second], axis=1))
    assert [each.op.name for each in weights["bias"]] == ["linear_model/bias_weights"]
    assert gs.get_collection("mine") == [*weights[price], *weights["bias"]]


def test_columns_with_equal_arguments_are_one_key():
    def made():
        return fc.bucketized_column(fc.numeric_column("price"), [1, 2])

    assert made() == made()
    assert len({made(), made(), fc.numeric_column("price")}) == 2


def test_a_second_layer_has_tables_of_its_own_unless_its_scope_is_reused():
    column = fc.embedding_column(fc.categorical_column_with_identity("id", 3), 2)
    features = {"id": gs.constant([[1]])}
    for _ in range(2):
        fc.input_layer(features, [column])
    for _ in range(2):
        with gs.variable_scope("model", reuse=gs.AUTO_REUSE):
            fc.input_layer(features, [column])
    names = [each.op.name.removesuffix("/id_embedding/embedding_weights") for each in gs.trainable_variables()]
    assert names == ["input_layer", "input_layer_1", "model/input_layer"]


def test_ids_that_are_not_there(session):
    column = fc.indicator_column(fc.categorical_column_with_identity("id", 3))
    with pytest.raises(gs.errors.InvalidArgumentError, match="must be at least 0 and less than num_buckets 3; got 3"):
        session.run(fc.input_layer({"id": gs.constant([[3]])}, [column]))


def test_weights_that_are_dense(session):
    ids = fc.categorical_column_with_identity("id", 3)
    column = fc.indicator_column(fc.weighted_categorical_column(ids, "weight"))
    features = {"id": gs.constant([[2, 0], [1, -1]]), "weight": gs.constant([[0.5, 2.0], [3.0, 9.0]])}
    assert session.run(fc.input_layer(features, [column])).tolist() == [[2, 0, 0.5], [0, 3, 0]]


def test_features_whose_rank_is_not_known(session):
    ids, price = gs.placeholder("int64"), gs.placeholder("float32")
    columns = [fc.indicator_column(IDS), fc.numeric_column("price")]
    layer = fc.input_layer({"id": ids, "price": price}, columns)
    (slope,) = gs.gradients(layer**2, [price])
    for shape in ([2], [2, 1]):
        fed = {ids: np.reshape([2, 0], shape), price: np.reshape([5.0, 6.0], shape)}
        assert session.run(layer, fed).tolist() == [[0, 0, 1, 5], [1, 0, 0, 6]]
        assert session.run(slope, fed).tolist() == (2 * fed[price]).tolist()


IDS = fc.categorical_column_with_identity("id", 3)
PRICE = fc.numeric_column("price")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: fc.input_layer({"id": [1]}, [IDS]), "must be a _DenseColumn. You can wrap a categorical column"),
        (lambda: fc.input_layer({}, []), "feature_columns must not be empty"),
        (lambda: fc.input_layer({}, ["price"]), "must be a _FeatureColumn"),
        (lambda: fc.input_layer({}, [PRICE]), "Feature price is not in features dictionary"),
        (lambda: fc.input_layer({"price": 1.0}, [PRICE]), "cannot have rank 0"),
        (lambda: fc.input_layer({"price": [1.0]}, [PRICE, fc.numeric_column("price", 2)]), "Duplicate feature column"),
        (lambda: fc.linear_model({"id": ["a"]}, [IDS]), "Invalid input, not integer. key: id dtype: string"),
        (lambda: fc.linear_model({"id": [1.0]}, [IDS]), "takes strings or integers"),
        (
            lambda: fc.linear_model({"a": ["b"]}, [fc.categorical_column_with_hash_bucket("a", 5, gs.int64)]),
            "SparseTensors dtype must be compatible. key: a, column dtype: int64, tensor dtype: string",
        ),
        (
            lambda: fc.linear_model({"a": [1]}, [fc.categorical_column_with_vocabulary_list("a", ["b"])]),
            "key: a, column dtype: string, tensor dtype: int32",
        ),
        (lambda: fc.make_parse_example_spec([PRICE, fc.numeric_column("price", 2)]), "different parse_spec for key"),
        (lambda: fc.make_parse_example_spec(["price"]), "must be _FeatureColumn instances"),
        (lambda: fc.numeric_column(3), "key must be a string"),
        (lambda: fc.numeric_column("a", 0), "shape dimensions must be greater than 0"),
        (lambda: fc.numeric_column("a", dtype=gs.string), "dtype must be convertible to float"),
        (lambda: fc.bucketized_column(IDS, [1]), "must be a column generated with numeric_column"),
        (lambda: fc.bucketized_column(PRICE, [2, 1]), "must be a sorted list"),
        (lambda: fc.bucketized_column(fc.numeric_column("a", [2, 2]), [1]), "must be one-dimensional"),
        (lambda: fc.categorical_column_with_hash_bucket("a", 0), "hash_bucket_size must be at least 1"),
        (lambda: fc.categorical_column_with_hash_bucket("a", 5, gs.float32), "dtype must be string or integer"),
        (lambda: fc.categorical_column_with_vocabulary_list("a", []), "must be non-empty"),
        (lambda: fc.categorical_column_with_vocabulary_list("a", ["b", "b"]), "Duplicate keys"),
        (lambda: fc.categorical_column_with_vocabulary_list("a", ["b"], None, 0, 1), "Can't specify both"),
        (lambda: fc.categorical_column_with_vocabulary_file("a", ""), "Missing vocabulary_file"),
        (lambda: fc.categorical_column_with_identity("a", 0), "num_buckets 0 < 1"),
        (lambda: fc.categorical_column_with_identity("a", 3, 3), r"not in range \[0, 3\)"),
        (lambda: fc.crossed_column(["a"], 5), "must be a list with length > 1"),
        (lambda: fc.crossed_column(["a", PRICE], 5), "Unsupported key type"),
        (
            lambda: fc.crossed_column(["a", fc.categorical_column_with_hash_bucket("b", 5)], 5),
            "Hashing before crossing",
        ),
        (lambda: fc.embedding_column(IDS, 0), "Invalid dimension 0"),
        (lambda: fc.embedding_column(IDS, 2, initializer=3), "initializer must be callable"),
        (lambda: fc.embedding_column(IDS, 2, ckpt_to_load_from="x"), "call gs.train.init_from_checkpoint"),
        (lambda: fc.shared_embedding_columns([IDS, fc.categorical_column_with_identity("b", 4)], 2), "same number"),
        (lambda: fc.weighted_categorical_column(IDS, "w", gs.string), "is not convertible to float"),
    ],
)
def test_what_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_a_normalizer_that_cannot_be_called():
    with pytest.raises(TypeError, match="must be a callable"):
        fc.numeric_column("a", normalizer_fn=3)


WORDS = gs.SparseTensorValue([[0, 0], [0, 1], [2, 0]], [b"b", b"a", b"c"], [3, 2])
NUMBERS = gs.SparseTensorValue([[0, 0], [0, 1], [0, 2], [0, 3], [2, 0], [2, 1]], np.arange(6, dtype="f"), [3, 4])


def test_columns_of_sequences(session, tmp_path):
    (tmp_path / "words").write_text("a\nb\nc\n")
    features = {key: gs.sparse_placeholder(gs.string) for key in ("listed", "filed", "hashed")}
    features |= {"ids": gs.sparse_placeholder(gs.int64), "numbers": gs.sparse_placeholder(gs.float32, [None, None])}
    ids = fc.sequence_categorical_column_with_identity("ids", 3)
    columns = [
        fc.indicator_column(fc.sequence_categorical_column_with_vocabulary_list("listed", ["a", "b", "c"])),
        fc.indicator_column(fc.sequence_categorical_column_with_vocabulary_file("filed", str(tmp_path / "words"))),
        fc.embedding_column(fc.sequence_categorical_column_with_hash_bucket("hashed", 4), 2),
        fc.embedding_column(ids, 2, initializer=lambda shape, dtype, partition_info: gs.ones(shape)),
        fc.sequence_numeric_column("numbers", shape=2, default_value=-1.0, normalizer_fn=None),
    ]
    steps, lengths = gs.contrib.feature_column.sequence_input_layer(features, columns)
    assert steps.shape.as_list() == [None, None, 12]
    assert [v.op.name for v in gs.trainable_variables()] == [
        f"sequence_input_layer/{name}_embedding/embedding_weights" for name in ("hashed", "ids")
    ]
    spec = fc.make_parse_example_spec([ids, columns[-1]])
    assert spec == {"ids": gs.VarLenFeature(gs.int64), "numbers": gs.VarLenFeature(gs.float32)}
    ready(session)
    numbered = gs.SparseTensorValue(WORDS.indices, [1, 0, 2], WORDS.dense_shape)
    given = {features[key]: WORDS for key in ("listed", "filed", "hashed")}
    given |= {features["ids"]: numbered, features["numbers"]: NUMBERS}
    found, counts = session.run([steps, lengths], given)
    assert counts.tolist() == [2, 0, 1]
    marks = np.zeros((3, 2, 3))
    marks[[0, 0, 2], [0, 1, 0], [1, 0, 2]] = 1
    np.testing.assert_array_equal(found[..., :3], marks)
    np.testing.assert_array_equal(found[..., 7:10], marks)
    there = marks.any(-1, keepdims=True)
    np.testing.assert_array_equal(found[..., 5:7], np.broadcast_to(there, (3, 2, 2)))
    assert ((found[..., 3:5] != 0) == there).all()
    np.testing.assert_array_equal(found[..., 10:], [[[0, 1], [2, 3]], [[-1, -1], [-1, -1]], [[4, 5], [-1, -1]]])
    with pytest.raises(gs.errors.InvalidArgumentError, match="different numbers of steps"):
        session.run(lengths, {**given, features["numbers"]: WORDS._replace(values=[1.0, 2.0, 3.0])})


def test_columns_of_sequences_and_others_are_kept_apart():
    words = fc.sequence_categorical_column_with_identity("words", 3)
    features = {"words": gs.sparse_placeholder(gs.int64)}
    with pytest.raises(ValueError, match="must not be of type SequenceCategoricalColumn"):
        fc.input_layer(features, [fc.embedding_column(words, 2)])
    other = fc.indicator_column(fc.categorical_column_with_identity("words", 3))
    for wrong, text in (
        (other, "must be of type SequenceCategoricalColumn"),
        (words, "must be of type _SequenceDenseColumn"),
        (fc.numeric_column("words"), "must be of type _SequenceDenseColumn"),
    ):
        with pytest.raises(ValueError, match=text):
            gs.contrib.feature_column.sequence_input_layer(features, [wrong])
    for make, error in (
        (lambda: fc.sequence_numeric_column("x", shape=0), ValueError),
        (lambda: fc.sequence_numeric_column("x", dtype=gs.string), ValueError),
        (lambda: fc.sequence_numeric_column("x", normalizer_fn=1), TypeError),
    ):
        with pytest.raises(error):
            make()


OF_X = fc.categorical_column_with_identity("x", 3)
#: Class of TensorFlow's -> a column of it, and the name and the value of an argument of its own.
KINDS = {
    "NumericColumn": (fc.numeric_column("x", 2), "shape", (2,)),
    "BucketizedColumn": (fc.bucketized_column(fc.numeric_column("x"), [1.0]), "boundaries", (1.0,)),
    "HashedCategoricalColumn": (fc.categorical_column_with_hash_bucket("x", 5), "hash_bucket_size", 5),
    "IdentityCategoricalColumn": (OF_X, "num_buckets", 3),
    "VocabularyListCategoricalColumn": (
        fc.categorical_column_with_vocabulary_list("x", ["a"]), "vocabulary_list", ("a",)
    ),
    "VocabularyFileCategoricalColumn": (
        fc.categorical_column_with_vocabulary_file("x", "words", 3), "vocabulary_file", "words"
    ),
    "WeightedCategoricalColumn": (fc.weighted_categorical_column(OF_X, "w"), "weight_feature_key", "w"),
    "CrossedColumn": (fc.crossed_column(["x", "y"], 7), "keys", ("x", "y")),
    "IndicatorColumn": (fc.indicator_column(OF_X), "categorical_column", OF_X),
    "EmbeddingColumn": (fc.embedding_column(OF_X, 4), "dimension", 4),
    "SharedEmbeddingColumn": (fc.shared_embedding_columns([OF_X], 4)[0], "name", "x_shared_embedding"),
}  # fmt: skip


def test_columns_are_of_tensorflows_classes():
    from globalstep.python.feature_column import feature_column, feature_column_v2

    for name, (column, attribute, value) in KINDS.items():
        of = [kind for kind in KINDS if isinstance(column, getattr(feature_column, f"_{kind}"))]
        assert of == [*(["EmbeddingColumn"] if "Shared" in name else []), name]
        assert isinstance(column, getattr(feature_column_v2, name))
        assert isinstance(column, feature_column._CategoricalColumn) == (name[0] in "BCHVW" or column is OF_X)
        assert getattr(column, attribute) == value


def test_ids_of_sequences_as_programs_look_them_up_by_themselves(session):
    from globalstep.python.feature_column import utils
    from globalstep.python.feature_column.feature_column import _LazyBuilder

    column = fc.sequence_categorical_column_with_identity("words", 3)
    words = gs.SparseTensor(WORDS.indices, gs.constant([1, 0, 2], gs.int64), WORDS.dense_shape)
    ids, weights = column._get_sparse_tensors(_LazyBuilder({"words": words}))
    assert (weights, column._num_buckets) == (None, 3)
    rows = gs.nn.safe_embedding_lookup_sparse(gs.constant([[1.0], [2.0], [3.0]]), ids)
    assert session.run(rows).tolist() == [[[2], [1]], [[0], [0]], [[3], [0]]]
    assert session.run(utils.sequence_length_from_sparse_tensor(ids)).tolist() == [2, 0, 1]
