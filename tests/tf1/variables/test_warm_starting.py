"""`tf.train.warm_start`: Variables begin with another model's values, by name and by the words of vocabularies."""

import numpy as np
import pytest

import globalstep as gs

OLD, NEW = ["apple", "banana", "guava", "orange"], ["orange", "fig", "apple", "guava"]
SAVED = np.array([[0.5, 5.0], [1.0, 10.0], [1.5, 15.0], [2.0, 20.0]], np.float32)


@pytest.fixture
def old(tmp_path):
    """A folder with a checkpoint of `old/rows`, [word, 2], `old/columns`, [2, word], and `other`; and vocabularies."""
    for name, words in (("old", OLD), ("new", NEW)):
        (tmp_path / name).write_text("\n".join(words))
    with gs.Graph().as_default(), gs.Session() as session:
        gs.get_variable("old/rows", initializer=SAVED)
        gs.get_variable("old/columns", initializer=SAVED.T)
        gs.get_variable("other", initializer=np.float32(7.0))
        session.run(gs.global_variables_initializer())
        gs.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    return tmp_path


def begun(*variables):
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        return session.run(list(variables))


@pytest.mark.parametrize("parts", [None, gs.fixed_size_partitioner(2)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_word_begins_with_its_value_wherever_it_is(old, axis, parts):
    shape = (5, 2) if axis == 0 else (2, 5)
    made = gs.get_variable("words", shape, initializer=gs.zeros_initializer(), partitioner=parts)
    ones = gs.ones_initializer()
    info = gs.train.VocabInfo(str(old / "new"), 4, 1, str(old / "old"), 3, ones, axis)
    gs.train.warm_start(str(old), None, {"words": info}, {"words": "old/columns" if axis else "old/rows"})
    # "orange" is the fourth old word, of which three count.
    expected = np.array([[1, 1], [1, 1], [0.5, 5], [1.5, 15], [1, 1]], np.float32)
    (found,) = begun(gs.convert_to_tensor(made))
    np.testing.assert_array_equal(found, expected.T if axis else expected)


def test_names_choose_what_begins_so(old):
    rows = gs.get_variable("mine/rows", initializer=np.zeros((4, 2), np.float32))
    other = gs.get_variable("other", initializer=np.float32(0.0))
    gs.train.warm_start(str(old), ".*/rows", var_name_to_prev_var_name={"mine/rows": "old/rows"})
    assert [np.sum(value) for value in begun(rows, other)] == [SAVED.sum(), 0]
    gs.train.warm_start(str(old), ["other"])
    assert begun(other) == [7]


@pytest.mark.parametrize("given", ["var_name_to_vocab_info", "var_name_to_prev_var_name"])
def test_a_name_that_is_not_used_is_refused(old, given):
    gs.get_variable("other", initializer=np.float32(0.0))
    with pytest.raises(ValueError, match=rf"following variables in {given} that were not used: {{'othr'}}"):
        gs.train.warm_start(str(old), **{given: {"othr": "other"}})


def test_a_partitioned_variable_may_have_a_constant_and_a_shape():
    made = gs.get_variable("w", [4, 1], initializer=[[1.0], [2.0], [3.0], [4.0]], partitioner=lambda **_: [2, 1])
    assert [part.tolist() for part in begun(*made)] == [[[1], [2]], [[3], [4]]]
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        assert made[0].eval(session).tolist() == [[1], [2]]
    columns, x = {}, gs.feature_column.numeric_column("x", 2)
    with gs.variable_scope("linear", partitioner=lambda shape, dtype: [1] * len(shape)):
        gs.feature_column.linear_model({"x": gs.constant([[1.0, 2.0]])}, [x], cols_to_vars=columns)
    assert [type(part) for parts in columns.values() for part in parts] == [gs.Variable, gs.Variable]
