"""Codec between declarations and protobuf messages.

The only module, besides the servicer and the client, that knows both.

Layer: shared. Threads: functions are pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.declarations import (
    ALIGNMENT,
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
)
from globalstep.wire.draws import Draw
from globalstep.wire.expressions import MAX_NODES, Expr
from globalstep.wire.names import GOOD_IDS, check_id

Array = npt.NDArray[Any]

#: Dtypes that a Variable may have, by numpy's name.
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "float16", "float32", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    )
}  # fmt: skip

# numpy computes a dtype's name anew on every access, which would be most of the cost of a small tensor.
_NAME_OF: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}


#: An enumeration that is called takes a microsecond to find its member.
_OUTCOME_KINDS: Mapping[int, OutcomeKind] = {int(kind): kind for kind in OutcomeKind}
_OP_KINDS: Mapping[int, OpKind] = {int(kind): kind for kind in OpKind}
#: Fewer row ids than this go as they are.
_PACKED_IDS = 256
_LARGEST_INT32 = 2**31 - 1
#: numpy's.
_MOST_AXES = 64
_LARGEST_AXIS = 2**40


@dataclasses.dataclass(slots=True, eq=False)
class TensorWriter:
    """Collects the tensors of a message: gives each its reference, keeps the bytes as views.

    Attributes:
        pieces: Views of the tensors' bytes, in order.
        dtypes: Of each piece.
        size: Bytes so far, padding included.
    """

    pieces: list[memoryview] = dataclasses.field(default_factory=list)
    dtypes: list[str] = dataclasses.field(default_factory=list)
    size: int = 0

    def add(self, array: Array, into: pb.TensorRef) -> None:
        """Take in a tensor and fill its reference.

        Args:
            array: Any array of a wire dtype; copied only if it is not contiguous.
            into: The reference to fill.

        Raises:
            InvalidArgumentError: If the dtype cannot cross the wire.
        """
        name = _NAME_OF.get(array.dtype)
        if name is None:
            raise InvalidArgumentError(f"A {array.dtype} array cannot cross the wire; use one of {list(DTYPES)}.")
        into.dtype = name
        into.shape.extend(array.shape)
        into.offset = self.size
        nbytes = array.nbytes
        if nbytes:
            self.pieces.append(np.ascontiguousarray(array).reshape(-1).data.cast("B"))
            self.dtypes.append(name)
            self.size += nbytes + -nbytes % ALIGNMENT

    def add_bytes(self, packed: Array) -> None:
        """Take in tensors that lie packed already, each padded to the alignment.

        Args:
            packed: [n], of the tensors' dtype.
        """
        if packed.nbytes:
            self.pieces.append(packed.data.cast("B"))
            self.dtypes.append(_NAME_OF.get(packed.dtype) or packed.dtype.name)
            self.size += packed.nbytes + -packed.nbytes % ALIGNMENT


def decode_tensor(ref: pb.TensorRef, data: memoryview) -> Array:
    """Give a tensor as a view into its message's data.

    Returns:
        Array of the reference's dtype and shape; not to be written to.

    Raises:
        InvalidArgumentError: If the reference is not within the data or names no wire dtype.
    """
    dtype = DTYPES.get(ref.dtype)
    shape = tuple(ref.shape)
    if dtype is None or (shape and min(shape) < 0):
        raise InvalidArgumentError(f"A tensor of dtype {ref.dtype!r} and shape {shape} is not possible.")
    count = math.prod(shape)
    if len(shape) > _MOST_AXES or (not count and math.prod(filter(None, shape)) > _LARGEST_INT32):
        raise InvalidArgumentError(f"A tensor of dtype {ref.dtype!r} and shape {shape} is not possible.")
    offset = ref.offset
    if offset % 8 or offset + count * dtype.itemsize > data.nbytes:
        raise InvalidArgumentError(
            f"A {ref.dtype} tensor of shape {shape} at byte {offset} is outside its message's "
            f"{data.nbytes} bytes of data."
        )
    return np.frombuffer(data, dtype, count, offset).reshape(shape)


def packed_ids(ids: Array, fewest: int = _PACKED_IDS) -> Array:
    """Give row ids in half the bytes, where they fit and that is worth it.

    Args:
        ids: They.
        fewest: Fewer go as they are.
    """
    # A negative one is a large one without its sign.
    if ids.dtype != np.int64 or ids.size < fewest or (ids.size and ids.view(np.uint64).max() > _LARGEST_INT32):
        return ids
    return ids.astype(np.int32)


def _unpacked(ref: pb.TensorRef, data: memoryview) -> Array:
    """Give row ids as int64, however they were sent.

    A copy: what lies in memory shared with the sender could be changed after it has been checked.
    """
    ids = decode_tensor(ref, data)
    return ids.astype(np.int64) if ids.dtype in (np.int32, np.int64) else ids


def encode_expression(expr: Expr, into: pb.Expression) -> None:
    """Write an expression tree."""
    into.op = expr.op
    into.value = expr.value
    into.name = expr.name
    for arg in expr.args:
        encode_expression(arg, into.args.add())


def _decode_expression(message: pb.Expression, budget: list[int]) -> Expr:
    budget[0] -= 1
    if budget[0] < 0:
        raise InvalidArgumentError(f"A hyper-parameter's expression has more than {MAX_NODES} parts.")
    args = tuple(_decode_expression(arg, budget) for arg in message.args)
    return Expr(message.op, args, message.value, message.name)


def encode_variable(decl: VariableDecl) -> pb.VariableDecl:
    """Write a Variable's declaration."""
    return pb.VariableDecl(
        name=decl.name, dtype=decl.dtype, shape=decl.shape, shard=decl.shard, trainable=decl.trainable,
        is_step=decl.is_step, primary=decl.primary, optimizer=decl.optimizer, slot=decl.slot,
        whole=decl.whole, first_row=decl.first_row, whole_rows=decl.whole_rows, increments=decl.increments,
    )  # fmt: skip


def decode_variable(message: pb.VariableDecl) -> VariableDecl:
    """Read a Variable's declaration.

    Raises:
        InvalidArgumentError: If dtype or shape are impossible.
    """
    shape = tuple(message.shape)
    possible = len(shape) <= _MOST_AXES and all(0 <= size <= _LARGEST_AXIS for size in shape)
    if message.dtype not in DTYPES or not possible or not message.name:
        raise InvalidArgumentError(f"Variable {message.name!r} cannot have dtype {message.dtype!r} and shape {shape}.")
    return VariableDecl(
        message.name, message.dtype, shape, message.shard, message.trainable, message.is_step,
        message.primary, message.optimizer, message.slot,
        (), message.whole, message.first_row, message.whole_rows, tuple(message.increments),
    )  # fmt: skip


def encode_optimizer(decl: OptimizerDecl) -> pb.OptimizerDecl:
    """Write an optimizer's declaration."""
    message = pb.OptimizerDecl(name=decl.name, kind=decl.kind, scalars=decl.scalars, use_locking=decl.use_locking)
    for name, expr in decl.hypers.items():
        encode_expression(expr, message.hypers[name])
    for name, slots in decl.slots.items():
        message.slots[name].names.extend(slots)
    return message


def decode_optimizer(message: pb.OptimizerDecl) -> OptimizerDecl:
    """Read an optimizer's declaration."""
    budget = [MAX_NODES]
    return OptimizerDecl(
        message.name,
        message.kind,
        {name: _decode_expression(expr, budget) for name, expr in message.hypers.items()},
        {name: tuple(slots.names) for name, slots in message.slots.items()},
        tuple(message.scalars),
        message.use_locking,
    )


def encode_limits(limits: Iterable[StopLimit], into: pb.OpenRequest) -> None:
    """Write stop limits."""
    for limit in limits:
        if limit.last_step is not None:
            into.last_steps[limit.step] = limit.last_step
        else:
            into.num_steps[limit.step] = limit.num_steps or 0


def decode_limits(message: pb.OpenRequest) -> list[StopLimit]:
    """Read stop limits."""
    absolute = [StopLimit(step, last_step=last) for step, last in sorted(message.last_steps.items())]
    return absolute + [StopLimit(step, num_steps=count) for step, count in sorted(message.num_steps.items())]


def encode_policy(policy: RunPolicy) -> pb.RunPolicy:
    """Write a run's policy."""
    return pb.RunPolicy(**{field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)})


def decode_policy(message: pb.RunPolicy) -> RunPolicy:
    """Read a run's policy; a word that is not there has its default.

    Raises:
        InvalidArgumentError: If it is none.
    """
    return RunPolicy(**{field.name: value for field, value in message.ListFields()})


def encode_push_id(push_id: PushId) -> pb.PushId:
    """Write a push id."""
    return pb.PushId(client=push_id.client, sequence=push_id.sequence)


def decode_push_id(message: pb.PushId) -> PushId:
    """Read a push id.

    Raises:
        InvalidArgumentError: If it is empty.
    """
    client, sequence = message.client, message.sequence
    if not client or not sequence:
        raise InvalidArgumentError("A push bears no id: client and sequence (from 1) are both needed.")
    if client not in GOOD_IDS:
        check_id(client)
    return PushId(client, sequence)


def encode_op(op: Op, into: pb.Op, tensors: TensorWriter) -> None:
    """Write one change of a push."""
    into.kind = int(op.kind)  # type: ignore[assignment]
    into.variable = op.variable
    if op.value is not None:
        tensors.add(op.value, into.value)
    elif isinstance(op.fill, Draw):
        into.draw.law, into.draw.seed, into.draw.row = op.fill.law, op.fill.seed, op.fill.row
        into.draw.first, into.draw.second = op.fill.first, op.fill.second
    elif op.fill is not None:
        into.fill = op.fill
    else:
        into.source = op.source
    if op.indices is not None:
        tensors.add(packed_ids(op.indices), into.indices)
    if op.optimizer:
        into.optimizer = op.optimizer
    if op.unique:
        into.unique = True
    if op.after_increment:
        into.after_increment = True


def decode_op(message: pb.Op, data: memoryview) -> Op:
    """Read one change of a push.

    Raises:
        InvalidArgumentError: If its kind or operand is missing or a tensor is out of bounds.
    """
    operand, kind = message.WhichOneof("operand"), _OP_KINDS.get(message.kind)
    if operand is None or kind is None:
        raise InvalidArgumentError(f"A change of {message.variable!r} has no kind or no operand.")
    return Op(
        kind,
        message.variable,
        decode_tensor(message.value, data) if operand == "value" else None,
        message.fill if operand == "fill" else _draw(message.draw) if operand == "draw" else None,
        message.source,
        _unpacked(message.indices, data) if message.HasField("indices") else None,
        message.optimizer,
        message.unique,
        message.after_increment,
    )


def _draw(message: pb.Draw) -> Draw:
    return Draw(message.law, message.first, message.second, message.seed, message.row)


def encode_reads(reads: Iterable[Read], into: Any, tensors: TensorWriter) -> None:
    """Write what is wanted into a message's `reads`."""
    for read in reads:
        message = into.add(variable=read.variable)
        if read.indices is not None:
            tensors.add(packed_ids(read.indices), message.indices)


def decode_reads(messages: Iterable[pb.Read], data: memoryview) -> list[Read]:
    """Read what is wanted."""
    return [
        Read(message.variable, _unpacked(message.indices, data) if message.HasField("indices") else None)
        for message in messages
    ]


def encode_use(use: OptimizerUse) -> pb.OptimizerUse:
    """Write the use of an optimizer."""
    return pb.OptimizerUse(
        optimizer=use.optimizer, after_increment=use.after_increment, finish=use.finish,
        hypers=dict(use.overrides),
    )  # fmt: skip


def decode_use(message: pb.OptimizerUse) -> OptimizerUse:
    """Read the use of an optimizer."""
    return OptimizerUse(message.optimizer, message.after_increment, message.finish, dict(message.hypers))


def encode_increments(increments: Iterable[Increment]) -> list[pb.Increment]:
    """Write increments of steps."""
    return [
        pb.Increment(
            step=item.step, by=item.by, contributions=item.contributions, most_of_client=item.most_of_client,
            closes=item.closes, unit=item.unit,
        )
        for item in increments
    ]  # fmt: skip


def decode_increments(messages: Iterable[pb.Increment]) -> list[Increment]:
    """Read increments of steps."""
    return [
        Increment(item.step, item.by, item.contributions, item.most_of_client, item.closes, item.unit)
        for item in messages
    ]


def encode_outcome(outcome: Outcome, into: pb.Outcome) -> None:
    """Write what became of a push."""
    into.kind = int(outcome.kind)  # type: ignore[assignment]
    into.index = outcome.index
    into.staleness = outcome.staleness
    into.duplicate = outcome.duplicate
    into.not_finite = outcome.not_finite
    for name, value in outcome.steps.items():  # `update` of a message's map takes three times as long
        into.steps[name] = value


def decode_outcome(message: pb.Outcome) -> Outcome:
    """Read what became of a push."""
    kind, steps = _OUTCOME_KINDS.get(message.kind) or OutcomeKind(message.kind), dict(message.steps)
    return Outcome(kind, message.index, steps, message.staleness, message.duplicate, message.not_finite)


def encode_values(values: Iterable[Array], into: Any, tensors: TensorWriter) -> None:
    """Write the answers to reads, in their order."""
    for value in values:
        tensors.add(value, into.add())


def decode_values(refs: Iterable[pb.TensorRef], data: memoryview) -> list[Array]:
    """Read the answers to reads."""
    return [decode_tensor(ref, data) for ref in refs]
