"""Functions of strings, and lookup tables; see value_cases."""

import functools

from value_cases import Values

WORDS = ["a", "", "abc", "hello", "abcdefgh", "0123456789abcdef", "0123456789abcdefg", "x" * 33, "y" * 64, "z" * 65]
WORDS += ["The quick brown fox jumps over the lazy dog", "\u00e9", "123", "-1", "w" * 130, "0123456789" * 40]


def of(build):
    """Give the case of functions that give nodes by their names."""
    return lambda tf: build(tf)


def _sparse(found):
    return {"indices": found.indices, "values": found.values, "dense_shape": found.dense_shape}


def hashes(tf):
    return {
        "fast": tf.string_to_hash_bucket_fast(WORDS, 2**62),
        "fast 10": tf.strings.to_hash_bucket_fast(WORDS, 10),
        "old": tf.string_to_hash_bucket(WORDS, 2**62),
        "strong": tf.string_to_hash_bucket_strong(WORDS, 2**62, [123456789, 987654321]),
    }


def numbers(tf):
    return {
        "floats": tf.string_to_number(["1.5", " -2e3 ", "inf", "7"]),
        "doubles": tf.string_to_number(["0.1"], tf.float64),
        "ints": tf.string_to_number(["12", "-3"], tf.int32),
        "longs": tf.string_to_number(["123456789012"], tf.int64),
    }


def written(tf):
    floats, ints = tf.constant([3.14159, -2e-7, 1e20, 0.0]), tf.constant([1, -20, 300])
    return {
        "floats": tf.as_string(floats),
        "short": tf.as_string(floats, shortest=True),
        "scientific": tf.as_string(floats, scientific=True, precision=3),
        "precise": tf.as_string(floats, precision=2),
        "ints": tf.as_string(ints),
        "wide": tf.as_string(ints, width=6, fill="0"),
        "left": tf.as_string(ints, width=6, fill="-"),
        "bools": tf.as_string([True, False]),
    }


def parts(tf):
    pairs = tf.constant([["Hello", "World"], ["ab", "cdefg"]])
    return {
        "substr": tf.substr(pairs, 1, 3),
        "negative": tf.substr(pairs, -2, 5),
        "each": tf.substr(pairs, [[0, 1], [1, 2]], [[1, 2], [1, 4]]),
        "characters": tf.substr("h\u00e9llo", 1, 2, unit="UTF8_CHAR"),
        "join": tf.string_join([pairs, pairs, "!"], "-"),
        "reduce all": tf.reduce_join(pairs),
        "reduce 0": tf.reduce_join(pairs, 0, separator="+"),
        "reduce 1": tf.reduce_join(pairs, 1, keep_dims=True),
        "reduce both": tf.reduce_join(pairs, [0, 1]),
        "reduce both, turned": tf.reduce_join(pairs, [1, 0]),
        "strip": tf.string_strip(["  a b ", "\tc\n"]),
        "length": tf.strings.length(["abc", "", "h\u00e9"]),
        "characters' length": tf.strings.length(["abc", "", "h\u00e9"], unit="UTF8_CHAR"),
        "replace": tf.regex_replace(["a1b22", "none"], "[0-9]+", "<\\0>"),
        "replace one": tf.regex_replace(["a1b22"], "([a-z])([0-9])", r"\2\1", replace_global=False),
        "full match": tf.strings.regex_full_match(["abc", "abcd"], "a.c"),
        "lower": tf.strings.lower(["AbC"]),
        "upper": tf.strings.upper(["AbC"]),
        "encode": tf.encode_base64([b"a\xff\xfe", "abcd"]),
        "encode padded": tf.encode_base64([b"a\xff\xfe", "abcd"], pad=True),
        "decode": tf.decode_base64(["Yf_-", "YWJjZA"]),
    }


def read_and_written(tf):
    return {"mnist": tf.as_string(tf.string_to_number(["0.25", "8"]), shortest=True)}


def vocabulary(tf):
    table = tf.contrib.lookup.index_table_from_tensor(tf.constant(["emerson", "lake", "palmer"]), 1)
    closed = tf.contrib.lookup.index_table_from_tensor(tf.constant(["emerson", "lake", "palmer"]), default_value=-7)
    buckets = tf.contrib.lookup.index_table_from_tensor(tf.constant(["emerson", "lake"]), 5)
    ints = tf.contrib.lookup.index_table_from_tensor(tf.constant([30, 10, 20], tf.int64), 3, dtype=tf.int64)
    names = tf.contrib.lookup.index_to_string_table_from_tensor(tf.constant(["emerson", "lake"]), "nobody")
    words = tf.constant(["palmer", "and", "emerson", "x", "yy"])
    outputs = {
        "one bucket": table.lookup(words),
        "closed": closed.lookup(words),
        "buckets": buckets.lookup(words),
        "ints": ints.lookup(tf.constant([10, 40, 50, -3], tf.int64)),
        "names": names.lookup(tf.constant([1, 5, 0], tf.int64)),
        "size": table.size(),
        "closed size": closed.size(),
        "parts": table.lookup(tf.string_split(["lake x", "palmer"])).values,
    }
    return Values(outputs, first=[tf.tables_initializer()])


def static_tables(tf):
    made = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1.5, 2.5]))
    table = tf.lookup.StaticHashTable(made, -1.0)
    ids = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([0, 1], tf.int64))
    vocabulary_table = tf.lookup.StaticVocabularyTable(ids, 4)
    keys = tf.constant([["b", "c"], ["a", "zz"]])
    return Values(
        {"values": table.lookup(keys), "ids": vocabulary_table.lookup(keys), "size": vocabulary_table.size()},
        first=[tf.tables_initializer()],
    )


CASES = {
    "hashes": hashes,
    "numbers": numbers,
    "written": written,
    "parts": parts,
    "read and written": read_and_written,
    "vocabulary": vocabulary,
    "static tables": static_tables,
}
_SPLITS = [
    ("spaces", ["hello world", "a  b c", "", " x "], {}),
    ("commas", ["1,2,,3", ","], {"sep": ","}),
    ("commas with empty parts", ["1,2,,3", ",", ""], {"sep": ",", "skip_empty": False}),
    ("any of several", ["a,b;c", "d"], {"sep": ",;"}),
    ("bytes", ["abc", "", "d"], {"sep": ""}),
]
for _name, _texts, _options in _SPLITS:
    CASES[f"string_split at {_name}"] = of(
        functools.partial(lambda tf, texts, options: _sparse(tf.string_split(texts, **options)), texts=_texts,
                          options=_options)
    )  # fmt: skip
for _name, _texts, _options in (
    ("white space", ["hello  world", " a b c ", ""], {}),
    ("a separator", ["1<>2<><>3", "<>"], {"sep": "<>"}),
    ("the first two", ["a b c d"], {"maxsplit": 2}),
):
    CASES[f"split at {_name}"] = of(
        functools.partial(lambda tf, texts, options: _sparse(tf.strings.split(texts, **options)), texts=_texts,
                          options=_options)
    )  # fmt: skip
