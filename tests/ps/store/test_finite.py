"""Looking through gradients for what is not finite (rung 1)."""

import numpy as np
import pytest

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.shard.layouts import Layout, PushParts
from globalstep.ps.store.finite import find_not_finite
from globalstep.wire.codec import decode_op
from globalstep.wire.declarations import Op, OpKind


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("at", [0, 1, 32_767, 32_768, 99_999])
def test_one_element_is_enough(dtype, at):
    value = np.ones(100_000, dtype)
    parts = PushParts([Op(OpKind.APPLY, "v", value)])
    value[at] = np.finfo(dtype).max
    assert find_not_finite(parts) == ""
    value[at] = np.inf
    assert find_not_finite(parts) == "v"


@pytest.mark.parametrize("bad", range(5))
def test_gradients_of_a_layout_are_looked_at_in_one_piece_and_named(bad):
    dtypes = ["float32", "float32", "float64", "float32", "float32"]
    sizes = [6, 8, 3, 4, 40_000]
    offset, ops, pieces = 0, [], []
    for number, (dtype, size) in enumerate(zip(dtypes, sizes, strict=True)):
        ops.append(pb.Op(kind=pb.OP_APPLY, variable=f"v{number}"))
        ops[-1].value.CopyFrom(pb.TensorRef(dtype=dtype, shape=[size], offset=offset))
        pieces.append(np.ones(size, dtype))
        offset += (pieces[-1].nbytes + 7) // 8 * 8
    layout = Layout(ops, decode_op, [], [], [], offset)

    def parts():
        # What lies between the tensors is no gradient.
        data = bytearray(b"\xff" * offset)
        for op, piece in zip(ops, pieces, strict=True):
            data[op.value.offset : op.value.offset + piece.nbytes] = piece.tobytes()
        return PushParts((), (), memoryview(data), layout)

    assert find_not_finite(parts()) == ""
    pieces[bad][-1] = np.nan
    assert find_not_finite(parts()) == f"v{bad}"
    assert len(layout.gradients) == 3


def test_what_is_no_gradient_may_be_anything():
    infinite = np.full(3, np.inf, np.float32)
    ops = [Op(OpKind.ASSIGN, "v", infinite), Op(OpKind.ASSIGN_ADD, "v", infinite), Op(OpKind.APPLY, "v", fill=0.0)]
    assert find_not_finite(PushParts([*ops, Op(OpKind.APPLY, "n", np.ones(3, np.int64))])) == ""
    assert find_not_finite(PushParts()) == ""
