"""Feature columns, the layers that take them, and the names of their Variables; see value_cases."""

import numpy as np
from value_cases import Values, array

WORDS = np.array([["red", "blue"], ["green", ""], ["", "pink"], ["red", "red"]], object)
NUMBERS = np.array([[3, 12], [5, -1], [-1, 0], [7, 7]], np.int64)


def features(tf):
    """Give the features of a batch of four."""
    return {
        "price": tf.constant([[1.5], [10.0], [-3.0], [99.0]]),
        "pair": tf.constant(array("pair", 4, 2) * 20),
        "age": tf.constant([18, 35, 64, 65], tf.int64),
        "color": tf.constant([["red"], ["blue"], ["pink"], ["black"]]),
        "flat": tf.constant(["red", "blue", "", "black"]),
        "words": tf.constant(WORDS),
        "numbers": tf.constant(NUMBERS),
        "sparse": tf.SparseTensor([[0, 0], [0, 1], [2, 0], [3, 4]], ["a", "b", "a", "c"], [4, 5]),
        "sparse_numbers": tf.SparseTensor([[0, 0], [0, 1], [2, 0], [3, 4]], np.int64([3, 1, 3, 0]), [4, 5]),
        "weights": tf.SparseTensor([[0, 0], [0, 1], [2, 0], [3, 4]], [0.5, 2.0, 1.5, 0.25], [4, 5]),
        "dense_weights": tf.constant([[0.5, 2.0], [1.0, 1.0], [1.0, 3.0], [0.1, 0.2]]),
    }


def case(layer, *makes, **options):
    """Give the case of a layer of some columns, made by functions of `tf.feature_column`."""

    def build(tf):
        made = [make(tf, tf.feature_column) for make in makes]
        columns = [column for each in made for column in (each if isinstance(each, list) else [each])]
        found = getattr(tf.feature_column, layer)(features(tf), columns, **options)
        variables = tf.global_variables()
        names = tf.constant(sorted(v.name for v in variables) or ["none"])
        ready = [tf.global_variables_initializer(), tf.tables_initializer()]
        return Values({"found": found, "names": names}, by=sorted(variables, key=lambda v: v.name), first=ready)

    return build


def table(tf, rows, columns):
    return tf.constant_initializer(array(f"table {rows} {columns}", rows, columns))


def price(tf, fc):
    return fc.numeric_column("price")


def buckets(tf, fc):
    return fc.bucketized_column(fc.numeric_column("price"), [0, 10.0, 50])


def pair_buckets(tf, fc):
    return fc.bucketized_column(fc.numeric_column("pair", 2), [5, 10])


HASHED = {
    "of a word": lambda tf, fc: fc.categorical_column_with_hash_bucket("color", 7),
    "of a vector": lambda tf, fc: fc.categorical_column_with_hash_bucket("flat", 7),
    "of words": lambda tf, fc: fc.categorical_column_with_hash_bucket("words", 7),
    "of numbers": lambda tf, fc: fc.categorical_column_with_hash_bucket("numbers", 7, tf.int64),
    "of a sparse feature": lambda tf, fc: fc.categorical_column_with_hash_bucket("sparse", 7),
}
LISTED = {
    "of words": lambda tf, fc: fc.categorical_column_with_vocabulary_list("words", ["red", "green", "blue"]),
    "with a default": lambda tf, fc: fc.categorical_column_with_vocabulary_list(
        "words", ["red", "blue"], default_value=1
    ),
    "with buckets": lambda tf, fc: fc.categorical_column_with_vocabulary_list("words", ["red"], num_oov_buckets=3),
    "of numbers": lambda tf, fc: fc.categorical_column_with_vocabulary_list("numbers", [12, 7, 3]),
}


def identity(tf, fc):
    return fc.categorical_column_with_identity("sparse_numbers", 4)


def defaulted(tf, fc):
    return fc.categorical_column_with_identity("numbers", 6, 5)


CROSSED = {
    "of words": lambda tf, fc: fc.crossed_column(["words", "color"], 11),
    "of buckets": lambda tf, fc: fc.crossed_column([buckets(tf, fc), "color"], 11),
    "of a cross": lambda tf, fc: fc.crossed_column([fc.crossed_column(["words", "color"], 5), "numbers"], 11),
    "with a key": lambda tf, fc: fc.crossed_column(["words", "color"], 11, hash_key=5),
    "of ids": lambda tf, fc: fc.crossed_column([identity(tf, fc), "color"], 11),
}


def weighted(tf, fc):
    return fc.weighted_categorical_column(
        fc.categorical_column_with_vocabulary_list("sparse", ["a", "b", "c"]), "weights"
    )


def embedded(make, rows, columns=3, **options):
    return lambda tf, fc: fc.embedding_column(make(tf, fc), columns, initializer=table(tf, rows, columns), **options)


def indicated(make):
    return lambda tf, fc: fc.indicator_column(make(tf, fc))


def shared(tf, fc):
    pair = [fc.categorical_column_with_vocabulary_list(key, ["red", "green", "blue"]) for key in ("words", "color")]
    return fc.shared_embedding_columns(pair, 2, initializer=table(tf, 3, 2))


CASES = {
    "numbers": case("input_layer", price, lambda tf, fc: fc.numeric_column("pair", shape=[2])),
    "numbers normalized": case(
        "input_layer", lambda tf, fc: fc.numeric_column("age", dtype=tf.int64, normalizer_fn=lambda x: x - 1)
    ),
    "buckets": case("input_layer", buckets, pair_buckets),
    **{f"indicator of a hash {name}": case("input_layer", indicated(make)) for name, make in HASHED.items()},
    **{f"indicator of a list {name}": case("input_layer", indicated(make)) for name, make in LISTED.items()},
    **{f"indicator of a cross {name}": case("input_layer", indicated(make)) for name, make in CROSSED.items()},
    "indicator of ids": case("input_layer", indicated(identity), indicated(defaulted)),
    "indicator with weights": case("input_layer", indicated(weighted)),
    "embedding of words": case("input_layer", embedded(LISTED["of words"], 3)),
    "embedding of words summed": case("input_layer", embedded(LISTED["of words"], 3, combiner="sum")),
    "embedding of words sqrtn": case("input_layer", embedded(HASHED["of words"], 7, combiner="sqrtn")),
    "embedding with a norm": case("input_layer", embedded(HASHED["of words"], 7, max_norm=0.5)),
    "embedding not trained": case("input_layer", embedded(HASHED["of words"], 7, trainable=False)),
    "embedding of buckets": case("input_layer", embedded(pair_buckets, 6)),
    "embedding of a cross": case("input_layer", embedded(CROSSED["of words"], 11)),
    "embedding with weights": case("input_layer", embedded(weighted, 3)),
    "embedding with weights summed": case("input_layer", embedded(weighted, 3, combiner="sum")),
    "embeddings that share a table": case("input_layer", shared),
    "all together": case(
        "input_layer", embedded(identity, 4), price, indicated(LISTED["of words"]), buckets,
        embedded(HASHED["of a word"], 7),
    ),
    "linear model": case("linear_model", price, buckets, LISTED["of words"], HASHED["of a word"], identity),
    "linear model of units": case("linear_model", pair_buckets, CROSSED["of words"], units=3),
    "linear model by mean": case("linear_model", LISTED["with buckets"], sparse_combiner="mean"),
    "linear model with weights": case("linear_model", weighted),
    "linear model of embeddings": case("linear_model", embedded(LISTED["of words"], 3), indicated(HASHED["of a word"])),
}  # fmt: skip
