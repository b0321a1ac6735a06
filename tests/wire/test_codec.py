"""Between declarations and messages: there and back again, and what is malformed is refused (rung 1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import codec
from globalstep.wire.codec import DTYPES, TensorWriter
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    Outcome,
    OutcomeKind,
    PushId,
    Read,
    StopLimit,
    VariableDecl,
    padded,
)
from globalstep.wire.expressions import MAX_NODES, Expr, constant, step


def packed(tensors: TensorWriter) -> memoryview:
    return memoryview(b"".join(bytes(piece) + bytes(padded(piece.nbytes) - piece.nbytes) for piece in tensors.pieces))


arrays = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda name: npst.arrays(DTYPES[name], npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)


@given(st.lists(arrays, max_size=4))
def test_tensors_come_back_bit_for_bit(values):
    tensors = TensorWriter()
    refs = []
    for value in values:
        ref = pb.TensorRef()
        tensors.add(value, ref)
        refs.append(ref)
    data = packed(tensors)
    assert data.nbytes == tensors.size
    for ref, value in zip(refs, values, strict=True):
        back = codec.decode_tensor(ref, data)
        assert (back.dtype, back.shape, back.tobytes()) == (value.dtype, value.shape, value.tobytes())
        assert ref.offset % 8 == 0


def test_an_array_that_is_not_contiguous_is_copied():
    value = np.arange(12, dtype=np.float32).reshape(3, 4).T
    tensors, ref = TensorWriter(), pb.TensorRef()
    tensors.add(value, ref)
    np.testing.assert_array_equal(codec.decode_tensor(ref, packed(tensors)), value)


@pytest.mark.parametrize("value", [np.zeros(2, complex), np.asarray(["a"]), np.asarray([object()])])
def test_dtypes_that_cannot_cross(value):
    with pytest.raises(InvalidArgumentError, match="cannot cross the wire"):
        TensorWriter().add(value, pb.TensorRef())


@pytest.mark.parametrize(
    "ref",
    [
        pb.TensorRef(dtype="float32", shape=[5]),
        pb.TensorRef(dtype="float32", shape=[1], offset=16),
        pb.TensorRef(dtype="float32", shape=[1], offset=4),
        pb.TensorRef(dtype="float32", shape=[-1]),
        pb.TensorRef(dtype="object", shape=[1]),
        pb.TensorRef(dtype="float32", shape=[1 << 62, 1 << 62]),
    ],
    ids=["too long", "behind the end", "not aligned", "negative", "no dtype", "overflow"],
)
def test_references_that_are_not_within_the_data(ref):
    with pytest.raises(InvalidArgumentError):
        codec.decode_tensor(ref, memoryview(bytes(16)))


def test_declarations_come_back():
    variable = VariableDecl("w/Adam", "float64", (2, 0), 3, True, False, "w", "Adam", "m")
    assert codec.decode_variable(codec.encode_variable(variable)) == variable
    rate = Expr("mul", (constant(0.1), Expr("pow", (constant(0.5), step("global_step")))))
    optimizer = OptimizerDecl(
        "Adam", "adam", {"learning_rate": rate}, {"w": ("w/Adam",), "b": ()}, ("beta1_power",), True
    )
    assert codec.decode_optimizer(codec.encode_optimizer(optimizer)) == optimizer
    limits, message = [StopLimit("a", last_step=0), StopLimit("b", num_steps=7)], pb.OpenRequest()
    codec.encode_limits(limits, message)
    assert codec.decode_limits(message) == limits
    use = OptimizerUse("Adam", True, False, {"learning_rate": 0.25})
    assert codec.decode_use(codec.encode_use(use)) == use
    increments = [Increment("G"), Increment("D", 5)]
    assert codec.decode_increments(codec.encode_increments(increments)) == increments
    assert codec.decode_push_id(codec.encode_push_id(PushId("c", 3))) == PushId("c", 3)
    message = pb.Outcome()
    outcome = Outcome(OutcomeKind.REFUSED_DONE, 0, {"G": 5}, 2, True)
    codec.encode_outcome(outcome, message)
    assert codec.decode_outcome(message) == outcome


def test_ops_and_reads_come_back():
    value, ids = np.ones((2, 3), np.float32), np.asarray([4, 1])
    tensors = TensorWriter()
    ops = [
        Op(OpKind.APPLY, "e", value, indices=ids, optimizer="sgd", unique=True, after_increment=True),
        Op(OpKind.ASSIGN, "w", fill=0.0),
        Op(OpKind.ASSIGN_SUB, "w", source="b"),
    ]
    messages = []
    for op in ops:
        messages.append(pb.Op())
        codec.encode_op(op, messages[-1], tensors)
    reads = pb.PullRequest().reads
    codec.encode_reads([Read("e", ids)], reads, tensors)
    data = packed(tensors)
    sparse, fill, source = (codec.decode_op(message, data) for message in messages)
    np.testing.assert_array_equal(sparse.value, value)
    np.testing.assert_array_equal(sparse.indices, ids)
    assert (sparse.kind, sparse.optimizer, sparse.unique, sparse.after_increment) == (OpKind.APPLY, "sgd", True, True)
    assert (fill.fill, fill.value, fill.source) == (0.0, None, "")
    assert (source.source, source.fill, source.kind) == ("b", None, OpKind.ASSIGN_SUB)
    np.testing.assert_array_equal(codec.decode_reads(reads, data)[0].indices, ids)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: codec.decode_variable(pb.VariableDecl(name="w", dtype="object")),
        lambda: codec.decode_variable(pb.VariableDecl(name="", dtype="float32")),
        lambda: codec.decode_variable(pb.VariableDecl(name="w", dtype="float32", shape=[-1])),
        lambda: codec.decode_push_id(pb.PushId(client="c")),
        lambda: codec.decode_push_id(pb.PushId(sequence=1)),
        lambda: codec.decode_op(pb.Op(kind=pb.OP_APPLY, variable="w"), memoryview(b"")),
        lambda: codec.decode_op(pb.Op(variable="w", fill=1.0), memoryview(b"")),
    ],
)
def test_messages_that_lack_something(wrong):
    with pytest.raises(InvalidArgumentError):
        wrong()


def test_an_endless_expression_is_refused():
    message = pb.OptimizerDecl(name="o", kind="k")
    node = message.hypers["learning_rate"]
    node.op = "add"
    for _ in range(MAX_NODES + 1):
        node.args.add(op="const")
    with pytest.raises(InvalidArgumentError, match="more than"):
        codec.decode_optimizer(message)


@pytest.mark.parametrize(("top", "packed"), [(2**31 - 1, "int32"), (2**31, "int64"), (-1, "int64")])
def test_row_ids_cross_the_wire_in_half_the_bytes_where_they_fit(top, packed):
    ids = np.arange(300, dtype=np.int64)
    ids[7] = top
    tensors = codec.TensorWriter()
    reads, op = pb.PullRequest().reads, pb.Op()
    codec.encode_reads([Read("table", ids)], reads, tensors)
    codec.encode_op(Op(OpKind.APPLY, "table", np.ones((300, 1)), indices=ids, optimizer="o"), op, tensors)
    data = memoryview(b"".join(bytes(piece) + bytes(-piece.nbytes % 8) for piece in tensors.pieces))

    assert reads[0].indices.dtype == op.indices.dtype == packed
    for found in (codec.decode_reads(reads, data)[0].indices, codec.decode_op(op, data).indices):
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, ids)
