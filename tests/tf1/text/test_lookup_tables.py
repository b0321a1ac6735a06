"""The life of lookup tables; tests/golden/values has what they give."""

import numpy as np
import pytest

import globalstep as gs

lookup = gs.contrib.lookup


def test_a_table_is_used_after_it_is_initialized(session):
    table = lookup.index_table_from_tensor(["a", "b"])
    node = table.lookup(gs.constant(["b", "c"]))
    assert gs.get_collection(gs.GraphKeys.TABLE_INITIALIZERS) == [table.init]
    with pytest.raises(gs.errors.FailedPreconditionError, match="Table not initialized"):
        session.run(node)
    session.run(gs.tables_initializer())
    session.run(gs.tables_initializer())
    assert session.run(node).tolist() == [1, -1]


def test_a_monitored_session_initializes_tables():
    with gs.Graph().as_default():
        gs.train.get_or_create_global_step()
        node = lookup.index_table_from_tensor(["a", "b"]).lookup(gs.constant(["b"]))
        with gs.train.MonitoredTrainingSession() as session:
            assert session.run(node).tolist() == [1]


def test_tables_of_files(session, tmp_path):
    path = str(tmp_path / "words.txt")
    (tmp_path / "words.txt").write_bytes(b"emerson\t10\nlake\t20\r\npalmer\t30\n")
    ids = lookup.index_table_from_file(path, key_column_index=0, num_oov_buckets=1)
    tens = lookup.index_table_from_file(path, key_column_index=0, value_column_index=1, vocab_size=2)
    names = lookup.index_to_string_table_from_file(path, key_column_index=1, value_column_index=0, default_value="?")
    session.run(gs.tables_initializer())
    assert session.run(ids.lookup(gs.constant(["lake", "x"]))).tolist() == [1, 3]
    assert session.run(tens.lookup(gs.constant(["lake", "palmer"]))).tolist() == [20, -1]
    assert session.run(names.lookup(gs.constant([30, 1], gs.int64))).tolist() == [b"palmer", b"?"]
    assert session.run([ids.size(), tens.size()]) == [4, 2]
    bad = lookup.index_table_from_file(path, vocab_size=9)
    with pytest.raises(gs.errors.InvalidArgumentError, match="Invalid vocab_size .* expected 9 but got 3"):
        session.run(bad.init)


def test_keys_that_have_two_values(session):
    table = lookup.HashTable(lookup.KeyValueTensorInitializer(["a", "a"], [1, 2]), -1)
    with pytest.raises(gs.errors.InvalidArgumentError, match="different value for same key"):
        session.run(table.init)


def test_a_mutable_table_changes(session):
    table = lookup.MutableHashTable(gs.string, gs.int64, -1)
    keys = gs.constant(["a", "b", "x"])
    found = table.lookup(keys)
    assert session.run(found).tolist() == [-1, -1, -1]
    session.run(table.insert(gs.constant(["a", "b"]), gs.constant([1, 2], gs.int64)))
    session.run(table.insert(gs.constant(["b"]), gs.constant([5], gs.int64)))
    assert session.run([found, table.size()])[0].tolist() == [1, 5, -1]
    held = dict(zip(*(part.tolist() for part in session.run(table.export())), strict=True))
    assert held == {b"a": 1, b"b": 5}
    session.run(table.remove(gs.constant(["a", "none"])))
    assert session.run(table.size()) == 1


def test_a_mutable_table_of_vectors(session):
    table = lookup.MutableHashTable(gs.int64, gs.float32, [0.0, -1.0])
    session.run(table.insert([7], [[1.5, 2.5]]))
    found = table.lookup(gs.constant([[7], [8]], gs.int64))
    assert found.shape.as_list() == [2, 1, 2]
    np.testing.assert_array_equal(session.run(found), [[[1.5, 2.5]], [[0, -1]]])
    np.testing.assert_array_equal(session.run(table.export()[1]), [[1.5, 2.5]])


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda: lookup.index_table_from_tensor(None), ValueError, "vocabulary_list must be specified"),
        (lambda: lookup.index_table_from_tensor(["a"], -1), ValueError, "num_oov_buckets must be greater or equal"),
        (lambda: lookup.index_table_from_file(""), ValueError, "vocabulary_file must be specified"),
        (lambda: lookup.index_table_from_file("f", vocab_size=0), ValueError, "vocab_size must be greater than 0"),
        (
            lambda: lookup.index_table_from_tensor(["a"]).lookup(gs.constant([1])),
            TypeError,
            "Keys must be dtype string",
        ),
        (lambda: lookup.IdTableWithHashBuckets(None, 0), ValueError, "oov_buckets must be > 0 if no table"),
        (lambda: gs.lookup.StaticVocabularyTable(None, 0), ValueError, "oov_buckets must be > 0"),
    ],
)
def test_what_cannot_be_is_refused(build, error, text):
    with gs.Graph().as_default(), pytest.raises(error, match=text):
        build()
