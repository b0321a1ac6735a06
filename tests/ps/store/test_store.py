"""The arrays of a shard (rung 1)."""

from __future__ import annotations

import numpy as np
import pytest

from globalstep.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.store.store import VariableStore
from globalstep.wire.codec import TensorWriter, decode_op, encode_op
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Read, VariableDecl
from globalstep.wire.draws import Draw
from globalstep.wire.expressions import constant

SGD = OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(0.5)}, {"w": (), "b": (), "e": ()})
HYPERS = {("sgd", False): {"learning_rate": 0.5}}
VARIABLES = [
    VariableDecl("w", "float32", (3,)),
    VariableDecl("b", "float32", ()),
    VariableDecl("e", "float32", (4, 2)),
    VariableDecl("n", "int64", (2,)),
]


@pytest.fixture
def store() -> VariableStore:
    made = VariableStore()
    made.declare(VARIABLES, [SGD])
    made.apply([Op(OpKind.ASSIGN, name, fill=1.0) for name in ("w", "b", "e", "n")], {})
    return made


def gradient(name: str, value, **more) -> Op:
    return Op(OpKind.APPLY, name, np.asarray(value, np.float32), optimizer="sgd", **more)


def values(store: VariableStore, *names: str) -> list[list[float]]:
    return [array.tolist() for array in store.read([Read(name) for name in names])]


def packed(*arrays: np.ndarray) -> tuple[list[np.ndarray], memoryview]:
    """Arrays as they lie in a message: each from a multiple of 8 bytes."""
    data = bytearray()
    starts = []
    for array in arrays:
        starts.append(len(data))
        data += array.tobytes()
        data += bytes(-len(data) % 8)
    view = memoryview(bytes(data))
    return [
        np.frombuffer(view, a.dtype, a.size, start).reshape(a.shape) for a, start in zip(arrays, starts, strict=True)
    ], view


def test_a_gradient_is_applied_by_its_optimizer(store):
    store.apply([gradient("w", [1, 2, 3])], HYPERS)
    assert values(store, "w", "b") == [[0.5, 0.0, -0.5], 1.0]


def test_neighbours_are_applied_as_one_run_and_give_the_same(store):
    rng = np.random.default_rng(7)
    grads = [rng.normal(size=shape).astype(np.float32) for shape in ((3,), (), (4, 2))]
    views, data = packed(*grads)
    ops = [Op(OpKind.APPLY, name, view, optimizer="sgd") for name, view in zip(("w", "b", "e"), views, strict=True)]
    assert len(store._runs(ops, data)) == 1
    store.apply(ops, HYPERS, data)
    for name, grad in zip(("w", "b", "e"), grads, strict=True):
        expected = np.ones_like(grad) - np.float32(0.5) * grad
        np.testing.assert_array_equal(store.read([Read(name)])[0], expected)


def test_gradients_in_another_order_are_applied_too(store):
    views, data = packed(np.full((4, 2), 2, np.float32), np.full(3, 4, np.float32))
    store.apply([gradient("e", views[0]), gradient("w", views[1])], HYPERS, data)
    assert values(store, "e", "w", "b") == [[[0, 0]] * 4, [-1, -1, -1], 1.0]


def test_an_optimizers_slots_lie_parallel_to_their_variables():
    store = VariableStore()
    names = ("w", "b")
    slots = {name: (f"{name}/Momentum",) for name in names}
    momentum = OptimizerDecl(
        "m", "momentum", {"learning_rate": constant(1), "momentum": constant(0.5), "use_nesterov": constant(0)}, slots
    )
    store.declare(
        [
            VariableDecl("w", "float32", (3,)),
            VariableDecl("w/Momentum", "float32", (3,), primary="w", optimizer="m", slot="momentum"),
            VariableDecl("b", "float32", (2,)),
            VariableDecl("b/Momentum", "float32", (2,), primary="b", optimizer="m", slot="momentum"),
        ],
        [momentum],
    )
    store.apply([Op(OpKind.ASSIGN, name, fill=0.0) for name in ("w", "b", "w/Momentum", "b/Momentum")], {})
    views, data = packed(np.ones(3, np.float32), np.ones(2, np.float32))
    ops = [Op(OpKind.APPLY, name, view, optimizer="m") for name, view in zip(names, views, strict=True)]
    assert len(store._runs(ops, data)) == 1
    hypers = {("m", False): {"learning_rate": 1.0, "momentum": 0.5, "use_nesterov": 0.0}}
    store.apply(ops, hypers, data)
    store.apply(ops, hypers, data)
    assert values(store, "w", "b", "w/Momentum") == [[-2.5] * 3, [-2.5] * 2, [1.5] * 3]


def test_sparse_gradients_touch_their_rows_only_and_duplicates_add_up(store):
    rows = np.asarray([[1, 1], [2, 2], [1, 1]], np.float32)
    store.apply([gradient("e", rows, indices=np.asarray([2, 0, 2]))], HYPERS)
    assert values(store, "e") == [[[0, 0], [1, 1], [0, 0], [1, 1]]]


def test_assigns(store):
    store.apply(
        [
            Op(OpKind.ASSIGN, "w", np.asarray([1, 2, 3], np.float32)),
            Op(OpKind.ASSIGN_ADD, "w", fill=1.0),
            Op(OpKind.ASSIGN_SUB, "b", np.asarray(3, np.float32)),
            Op(OpKind.ASSIGN_ADD, "e", np.ones((3, 2), np.float32), indices=np.asarray([1, 1, 3])),
            Op(OpKind.ASSIGN, "e", np.zeros((1, 2), np.float32), indices=np.asarray([0])),
        ],
        {},
    )
    assert values(store, "w", "b", "e") == [[2, 3, 4], -2.0, [[0, 0], [3, 3], [1, 1], [2, 2]]]


def test_a_variable_can_be_the_source_of_another():
    store = VariableStore()
    store.declare([VariableDecl("w", "float32", (2,)), VariableDecl("copy", "float32", (2,))], [])
    store.apply([Op(OpKind.ASSIGN, "w", fill=3.0), Op(OpKind.ASSIGN, "copy", source="w")], {})
    assert values(store, "copy") == [[3, 3]]


def test_rows_are_drawn():
    store, draw = VariableStore(), Draw("normal", 0.0, 1.0, 3, row=5)
    store.declare([VariableDecl("w", "float32", (4, 2))], [])
    op = decode_op(encoded(Op(OpKind.ASSIGN, "w", fill=draw)), memoryview(b""))
    store.check([op])
    store.apply([op], {})
    assert values(store, "w") == [draw.rows((4, 2)).tolist()]
    assert store.uninitialized() == []


def encoded(op: Op) -> pb.Op:
    message = pb.Op()
    encode_op(op, message, TensorWriter())
    return message


def test_reads_are_copies_and_rows_may_repeat(store):
    whole, rows = store.read([Read("e"), Read("e", np.asarray([3, 0, 3]))])
    whole[...] = 9
    assert rows.shape == (3, 2)
    assert values(store, "e") == [[[1, 1]] * 4]


def test_what_reads_take_of_a_buffer_is_known_before(store):
    taken = []

    class Buffer:
        def take(self, nbytes):
            taken.append(nbytes)

    for reads in ([Read("w")], [Read("e"), Read("b"), Read("e", np.asarray([3, 0, 3]))]):
        store.read(reads, Buffer())
        assert store.bytes_of(reads) == taken.pop()
    assert store.bytes_of([Read("e"), Read("missing")]) == 0
    store.most_read_bytes = 16
    assert store.bytes_of([Read("e")]) == 0


def test_a_snapshot_does_not_move_with_the_values(store):
    before = store.snapshot()
    store.apply([gradient("w", [1, 1, 1])], HYPERS)
    assert before["w"].tolist() == [1, 1, 1]
    assert before["b"].shape == ()


WRONG = {
    "shape": (gradient("w", [1, 2]), InvalidArgumentError, r"'w' has shape \[2\]; the Variable has shape \[3\]"),
    "dtype": (
        Op(OpKind.APPLY, "w", np.ones(3), optimizer="sgd"),
        InvalidArgumentError,
        "has dtype float64; the Variable has dtype float32",
    ),
    "variable": (gradient("v", [1.0]), NotFoundError, "Variable 'v', which this shard does not hold"),
    "optimizer": (
        Op(OpKind.APPLY, "w", np.ones(3, np.float32), optimizer="adam"),
        NotFoundError,
        "No optimizer 'adam'",
    ),
    "untrained": (
        Op(OpKind.APPLY, "n", np.ones(2, np.int64), optimizer="sgd"),
        InvalidArgumentError,
        "not declared for Variable 'n'",
    ),
    "row too high": (
        gradient("e", [[1, 1]], indices=np.asarray([4])),
        InvalidArgumentError,
        r"Row id 4 is not in \[0, 4\) for Variable 'e'",
    ),
    "row negative": (gradient("e", [[1, 1]], indices=np.asarray([-1])), InvalidArgumentError, "Row id -1"),
    "rows of a scalar": (gradient("b", [1], indices=np.asarray([0])), InvalidArgumentError, "'b'"),
    "id dtype": (gradient("e", [[1, 1]], indices=np.asarray([0], np.int32)), InvalidArgumentError, "int64"),
    "no operand": (Op(OpKind.ASSIGN, "w"), InvalidArgumentError, "no operand"),
    "drawn, not assigned": (
        Op(OpKind.ASSIGN_ADD, "e", fill=Draw("normal", 0.0, 1.0, 3)),
        InvalidArgumentError,
        "Random values are assigned to 'e'",
    ),
    "drawn integers": (Op(OpKind.ASSIGN, "n", fill=Draw("normal", 0.0, 1.0, 3)), InvalidArgumentError, "'n' is int64"),
    "source of another shape": (Op(OpKind.ASSIGN, "w", source="e"), InvalidArgumentError, "its source 'e'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_and_changes_nothing(store, name):
    op, kind, text = WRONG[name]
    before = store.snapshot()
    with pytest.raises(kind, match=text):
        store.check([gradient("w", [1, 1, 1]), op])
    for key, value in store.snapshot().items():
        np.testing.assert_array_equal(value, before[key])


def test_a_variable_without_a_value_cannot_be_used():
    store = VariableStore()
    store.declare(VARIABLES, [SGD])
    assert store.uninitialized() == ["w", "b", "e", "n"]
    with pytest.raises(FailedPreconditionError, match="Attempting to use uninitialized value w"):
        store.read([Read("w")])
    with pytest.raises(FailedPreconditionError, match="Attempting to use uninitialized value w"):
        store.check([gradient("w", [1, 1, 1])])
    store.check([Op(OpKind.ASSIGN, "w", fill=0.0), gradient("w", [1, 1, 1])], [Read("w")])
    with pytest.raises(FailedPreconditionError):
        store.check([Op(OpKind.ASSIGN, "w", fill=0.0)], [Read("b")])


def test_declaring_the_same_again_changes_nothing(store):
    store.declare(VARIABLES, [SGD])
    assert values(store, "w") == [[1, 1, 1]]
    assert len(store.variables) == 4


def test_declaring_something_else_is_refused(store):
    with pytest.raises(AlreadyExistsError, match=r"'w' is declared as float32 \[4\].*float32 \[3\]"):
        store.declare([VariableDecl("new", "float32", ()), VariableDecl("w", "float32", (4,))], [])
    with pytest.raises(AlreadyExistsError, match="sgd"):
        store.declare([], [OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(1)}, {})])
    assert [decl.name for decl in store.variables] == ["w", "b", "e", "n"]


def test_an_optimizer_may_grow(store):
    store.declare([VariableDecl("late", "float32", (1,))], [OptimizerDecl("sgd", SGD.kind, SGD.hypers, {"late": ()})])
    store.apply([Op(OpKind.ASSIGN, "late", fill=1.0), gradient("late", [2]), gradient("w", [2, 2, 2])], HYPERS)
    assert values(store, "late", "w") == [[0], [0, 0, 0]]


def test_empty_variables_are_possible():
    store = VariableStore()
    store.declare([VariableDecl("w", "float32", (0, 3))], [OptimizerDecl("sgd", SGD.kind, SGD.hypers, {"w": ()})])
    views, data = packed(np.zeros((0, 3), np.float32))
    store.apply([Op(OpKind.ASSIGN, "w", fill=0.0), gradient("w", views[0])], HYPERS, data)
    assert store.read([Read("w")])[0].shape == (0, 3)
