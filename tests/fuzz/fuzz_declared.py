"""Declarations of any rule, Variable and slot, right and wrong, and pushes and pulls of what was declared so."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from globalstep.proto import globalstep_pb2 as pb
from globalstep.rules import get_rule
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Read, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.wire.frames import padded

_KINDS = (
    "adadelta", "adagrad", "adagrad_da", "adam", "adamw", "centered_rmsprop", "delayed_nesterov", "ftrl",
    "gradient_descent", "lamb", "lazy_adam", "lion", "momentum", "moving_average", "proximal_adagrad",
    "proximal_gradient_descent", "rmsprop", "root_adagrad", "root_centered_rmsprop", "root_rmsprop",
    "zero_debias_moving_average",
)  # fmt: skip
_SHAPES = ((), (1,), (2,), (5,), (300,), (3, 2), (40, 3), (0, 4), (2, 0), (2, 2, 2))
_DTYPES = ("float32", "float32", "float32", "float64", "float16", "int32", "bool")


@dataclass(frozen=True)
class _Told:
    """An optimizer, and what it is for.

    Attributes:
        optimizer: As it was declared.
        shapes: Variables and slots, name -> (shape, dtype) as declared.
    """

    optimizer: OptimizerDecl
    shapes: dict[str, tuple[tuple[int, ...], str]]


class DeclaredUse:
    """Remembers what was declared, and makes requests that use it. Not thread-safe."""

    def __init__(self) -> None:
        self._told: list[_Told] = []

    def declare(self, rng: random.Random) -> tuple[pb.DeclareRequest, _Told]:
        """Make a declaration: of a rule with its Variables, slots and scalars, some of them wrong."""
        kind = rng.choice(_KINDS)
        rule = get_rule(kind)
        number = rng.randrange(6)
        shape, dtype = rng.choice(_SHAPES), rng.choice(_DTYPES)
        names = [f"d{number}", f"d{number}b"][: rng.randrange(1, 3)]
        shapes: dict[str, tuple[tuple[int, ...], str]] = dict.fromkeys(names, (shape, dtype))
        slots: dict[str, tuple[str, ...]] = {}
        for name in names:
            slots[name] = tuple(f"{name}/{slot}" for slot in rule.slots)
            for slot in slots[name]:
                shapes[slot] = (rng.choice(_SHAPES), rng.choice(_DTYPES)) if rng.randrange(12) == 0 else (shape, dtype)
        if rng.randrange(10) == 0 and slots[names[0]]:
            # The slot of another, a step, a scalar, the Variable itself.
            other = rng.choice(("w/m", "step", "p1", names[0], "s", "nobody"))
            slots[names[0]] = (other, *slots[names[0]][1:])
        scalars = tuple(f"o{number}/{scalar}" for scalar in rule.scalars)
        shapes |= {name: ((), "float32") if rng.randrange(12) else (rng.choice(_SHAPES), "float32") for name in scalars}
        hypers = {name: constant(rng.choice((0.0, 0.5, 0.9, 1.0))) for name in rule.hypers if rng.randrange(8)}
        optimizer = OptimizerDecl(f"o{number}", kind, hypers, slots, scalars)
        variables = [VariableDecl(name, dtype, shape, 0) for name, (shape, dtype) in shapes.items()]
        rng.shuffle(variables)
        message = pb.DeclareRequest(
            incarnation=7,
            client="a",
            variables=[codec.encode_variable(decl) for decl in variables],
            optimizers=[codec.encode_optimizer(optimizer)],
        )
        return message, _Told(optimizer, shapes)

    def accepted(self, told: _Told, message: pb.DeclareRequest) -> None:
        """Use it from now on, as it was sent."""
        if any(one.name == told.optimizer.name for one in message.optimizers):
            self._told = [*self._told[-5:], told]

    def use(
        self, rng: random.Random, sequence: Callable[[str], int], client: Callable[[], str]
    ) -> tuple[pb.Request, bytes] | None:
        """Make a push by an optimizer that was declared, after assignments to what it needs; None if none was."""
        if not self._told:
            return None
        told = rng.choice(self._told)
        ops = [Op(OpKind.ASSIGN, name, fill=0.5) for name in told.shapes if rng.randrange(64)]
        rng.shuffle(ops)
        for name in told.optimizer.slots:
            shape, dtype = told.shapes[name] if rng.randrange(16) else (rng.choice(_SHAPES), "float32")
            indices = None
            if shape and shape[0] and rng.randrange(3) == 0:
                ids = [
                    rng.randrange(shape[0]) if rng.randrange(32) else rng.choice((-1, shape[0], 2**40)) for _ in "abc"
                ]
                indices = np.array(ids, np.int64)
                shape = (len(ids), *shape[1:])
            value = np.full(shape, rng.choice((0.0, 1.0, -2.0, np.nan, np.inf)), np.float64)
            with np.errstate(all="ignore"):
                grad = value.astype(dtype) if rng.randrange(24) else value
            ops.append(Op(OpKind.APPLY, name, grad, indices=indices, optimizer=told.optimizer.name))
        request, tensors = pb.Request(), TensorWriter()
        message = request.push
        who = client()
        message.incarnation, message.id.client, message.id.sequence = 7, who, sequence(who)
        for op in ops:
            codec.encode_op(op, message.ops.add(), tensors)
        for name in told.shapes:
            if rng.randrange(3) == 0:
                codec.encode_reads([Read(name)], message.reads, tensors)
        use = message.uses.add(optimizer=told.optimizer.name, finish=bool(rng.randrange(2)))
        for name in get_rule(told.optimizer.kind).hypers:
            if name not in told.optimizer.hypers:
                use.hypers[name] = rng.choice((0.0, 0.5, 1.0, float("nan")))
        if rng.randrange(2):
            message.increments.add(step="step", by=rng.choice((1, 1, 0, -5)))
        message.layout = rng.choice((0, 0, 9))
        data = b"".join(bytes(piece) + bytes(padded(piece.nbytes) - piece.nbytes) for piece in tensors.pieces)
        return request, data
