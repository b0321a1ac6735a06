import numpy as np
import pytest

import globalstep as gs


def test_what_was_not_written_reads_as_zeros(session):
    array = gs.TensorArray(gs.float32, 3).write(1, [1.0, 2.0])
    assert session.run(array.stack()).tolist() == [[0, 0], [1, 2], [0, 0]]
    assert session.run(array.read(2)).tolist() == [0, 0]
    assert session.run(gs.TensorArray(gs.float32, 2, element_shape=[2]).stack()).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(gs.errors.InvalidArgumentError, match="no element was written"):
        session.run(gs.TensorArray(gs.float32, 2).stack())


def test_writes_leave_the_array_that_they_came_from(session):
    first = gs.TensorArray(gs.int32, 2, infer_shape=True)
    one, two = first.write(0, 1), first.write(0, 2)
    assert session.run([one.read(0), two.read(0)]) == [1, 2]
    assert session.run(one.size()) == 2
    assert session.run(one.identity().write(1, 7).stack()).tolist() == [1, 7]
    session.run(one.close())


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda a: a.write(0, 1.0).write(0, 2.0).stack(), "index 0 because it has already been written to"),
        (lambda a: a.write(5, 1.0).stack(), "Tried to write to index 5 but array is not resizeable and size is: 2"),
        (lambda a: a.read(-1), "Tried to read from index -1 but array size is: 2"),
        (lambda a: a.unstack(gs.placeholder_with_default(np.ones(3, np.float32), [None])).stack(), r"\(3 vs. 2\)"),
        (
            lambda a: (
                a.write(0, gs.placeholder_with_default(np.ones(1, np.float32), None))
                .write(1, gs.placeholder_with_default(np.ones(2, np.float32), None))
                .stack()
            ),
            r"value shape is \[2\] which is incompatible with the TensorArray's inferred element shape: \[1\]",
        ),
    ],
)
def test_what_the_run_refuses(session, use, text):
    with pytest.raises(gs.errors.InvalidArgumentError, match=text):
        session.run(use(gs.TensorArray(gs.float32, 2)))


def test_what_is_refused_when_the_graph_is_built():
    with pytest.raises(gs.errors.InvalidArgumentError, match="dtype is int32 but Op is trying to write dtype float"):
        gs.TensorArray(gs.int32, 2).write(0, gs.ones([]))
    with pytest.raises(ValueError, match="Inconsistent shapes"):
        gs.TensorArray(gs.float32, 2).write(0, gs.ones([1])).write(1, gs.ones([2]))
    with pytest.raises(ValueError, match="Size must be provided"):
        gs.TensorArray(gs.float32)
    with pytest.raises(ValueError, match="both a handle and size"):
        gs.TensorArray(gs.float32, 2, handle=gs.ones([]))


def test_static_shapes():
    array = gs.TensorArray(gs.float32, 3).unstack(gs.placeholder(gs.float32, [None, 4]))
    assert array.element_shape.as_list() == [4]
    assert array.stack().shape.as_list() == [3, 4]
    assert array.read(0).shape.as_list() == [4]
    assert array.gather([0, 2]).shape.as_list() == [2, 4]
    assert array.concat().shape.ndims is None or array.concat().shape.as_list() == [None]


def test_map_fn_and_scan_refuse():
    with pytest.raises(ValueError, match="elems must be a 1"):
        gs.map_fn(lambda x: x, 1.0)
    with pytest.raises(TypeError, match="fn must be callable"):
        gs.scan(None, [1.0])
    with pytest.raises(gs.errors.InvalidArgumentError, match="trying to write dtype float"):
        gs.map_fn(lambda x: gs.to_float(x), gs.constant([1, 2]))
    with pytest.raises(ValueError, match="same nested structure"):
        gs.scan(lambda a, x: (a, x), gs.constant([1.0, 2.0]))


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_gradient_goes_to_an_element_that_a_branch_reads(in_loop):
    with gs.Graph().as_default(), gs.Session() as session:
        x = gs.placeholder(gs.float32, [5, 3])
        array = gs.TensorArray(gs.float32, 5).unstack(x)

        def step(at, total):
            return at + 1, total + gs.cond(at < 2, lambda: gs.zeros([3]), lambda: array.read(at))

        start = (gs.constant(0 if in_loop else 2), gs.zeros([3]))
        _, total = gs.while_loop(lambda at, total: at < 5, step, start) if in_loop else step(*start)
        found = session.run(gs.gradients(total, x)[0], {x: np.ones((5, 3), np.float32)})
        assert found[:, 0].tolist() == ([0, 0, 1, 1, 1] if in_loop else [0, 0, 1, 0, 0])
