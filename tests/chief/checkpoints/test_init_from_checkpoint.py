"""Variables that begin with what a checkpoint holds."""

import numpy as np
import pytest

import globalstep as gs


@pytest.fixture
def saved(tmp_path):
    """Give the prefix of a checkpoint of old/w, old/b and step."""
    with gs.Graph().as_default(), gs.Session() as session:
        with gs.variable_scope("old"):
            gs.get_variable("w", initializer=np.arange(6, dtype=np.float32).reshape(3, 2))
            gs.get_variable("b", initializer=np.float32([7, 8]))
        gs.get_variable("step", initializer=np.int64(5))
        session.run(gs.global_variables_initializer())
        return gs.train.Saver().save(session, str(tmp_path / "model"), global_step=5)


def values(*variables):
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        return [np.asarray(value).tolist() for value in session.run(list(variables))]


W, B = [[0, 1], [2, 3], [4, 5]], [7, 8]


def test_variables_by_name_and_as_they_are(saved):
    with gs.variable_scope("new"):
        w = gs.get_variable("w", [3, 2])
    b = gs.Variable([0.0, 0.0])
    other = gs.Variable(1.0)
    gs.train.init_from_checkpoint(saved, {"old/w": "new/w", "old/b": b})
    assert values(w, b, other) == [W, B, 1]


def test_a_scope_from_the_latest_checkpoint_of_a_directory(saved, tmp_path):
    with gs.variable_scope("new/deep"):
        w, b = gs.get_variable("w", [3, 2]), gs.get_variable("b", [2])
    alone = gs.get_variable("alone", initializer=3.0)
    gs.contrib.framework.init_from_checkpoint(str(tmp_path), {"old/": "new/deep/"})
    assert values(w, b, alone) == [W, B, 3]


def test_the_whole_graph(saved):
    with gs.variable_scope("old"):
        w = gs.get_variable("w", [3, 2])
    step = gs.get_variable("step", [], "int64")
    gs.train.init_from_checkpoint(saved, {"/": "/"})
    assert values(w, step) == [W, 5]


def test_a_scope_from_the_root_and_the_root_from_a_scope(saved):
    with gs.variable_scope("new"):
        step = gs.get_variable("step", [], "int64")
    gs.train.init_from_checkpoint(saved, {"/": "new/"})
    assert values(step) == [5]
    with gs.Graph().as_default():
        w = gs.get_variable("w", [3, 2])
        gs.train.init_from_checkpoint(saved, {"old/": "/"})
        assert values(w) == [W]


def test_parts_of_a_variable(saved):
    with gs.variable_scope("new", partitioner=gs.fixed_size_partitioner(2)):
        w = gs.get_variable("w", [3, 2])
    gs.train.init_from_checkpoint(saved, {"old/w": list(w)})
    assert values(*w) == [W[:2], W[2:]]
    with gs.Graph().as_default(), gs.variable_scope("new", partitioner=gs.fixed_size_partitioner(3)):
        w = gs.get_variable("w", [3, 2])
        gs.train.init_from_checkpoint(saved, {"old/w": "new/w"})
        assert values(gs.convert_to_tensor(w)) == [W]


def test_what_is_made_of_an_initial_value_afterwards(saved):
    b = gs.get_variable("b", [2])
    gs.train.init_from_checkpoint(saved, {"old/b": b})
    double = gs.Variable(b.initialized_value() * 2.0)
    assert values(double) == [[14, 16]]
    with gs.Session() as session:
        b.load([1.0, 2.0], session)
        assert session.run(b).tolist() == [1, 2]


def test_a_chief_begins_with_it(saved):
    b = gs.get_variable("b", [2])
    gs.train.create_global_step()
    gs.train.init_from_checkpoint(saved, {"old/b": b})
    with gs.train.MonitoredTrainingSession() as session:
        assert session.run(b).tolist() == B


@pytest.mark.parametrize(
    ("assignments", "text"),
    [
        ({"none": "w"}, "Tensor none is not found in"),
        ({"old/b": "w"}, r"Shape of variable w:0 \(\(3, 2\)\) doesn't match with shape of tensor old/b \(\[2\]\)"),
        ({"step": "count"}, "Dtype of variable count:0"),
        ({"old/w": "missing/"}, "Should be 'scope/': 'other_scope/'"),
        ({"none/": "/"}, r"Tensor none/count \(count in none/\) is not found"),
    ],
)
def test_what_is_refused(saved, assignments, text):
    gs.get_variable("w", [3, 2])
    gs.get_variable("count", [], "int32")
    with pytest.raises(ValueError, match=text):
        gs.train.init_from_checkpoint(saved, assignments)
