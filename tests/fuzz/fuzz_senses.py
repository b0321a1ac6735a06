"""What a fuzzed task is looked at with: who may do what, what a request may change, memory beyond arrays and by byte.

Each is a second opinion, written without the code that it judges.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tracemalloc
from collections.abc import Collection, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
from fuzz_choices import EDGES, Finding

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.authorization import ANONYMOUS, Caller, Role
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.shard.shard import Shard
from globalstep.ps.store import arena
from globalstep.wire import codec
from globalstep.wire.declarations import OpKind
from globalstep.wire.frames import padded

Array = np.ndarray[Any, Any]

#: Of two workers: what their session secrets come to, and a client's id of each.
MARKS = ("a" * 32, "b" * 32)
BOUND = tuple(f"s{mark}-{'0' * 12}" for mark in MARKS)
CALLERS = (ANONYMOUS, Caller(Role.WORKER, "x", MARKS[0]), Caller(Role.WORKER, "y", MARKS[1]), Caller(Role.CHIEF, "z"))
PS_TASK = Caller(Role.PS, "p")
#: The client that has begun the run, as chief.
OWNER = "owner"

_WORKERS_METHODS = {"Status", "Heartbeat", "Leave", "GetGlobalStep", "OpenLane", "Declare", "Queue"}
_WORKERS_KINDS = {"pull", "push", "stage", "commit", "await_step", "await_slower"}
_ASSIGNS = {pb.OP_ASSIGN, pb.OP_ASSIGN_ADD, pb.OP_ASSIGN_SUB}


def forbidden(caller: Caller, what: str, message: Any, workers_assign: bool) -> str:
    """Say what a caller has done that is not for its role; "" where nothing was. `message` was accepted."""
    if caller.role is None or caller.role is Role.CHIEF:
        return ""
    if caller.role is Role.PS:
        return "" if what in ("Status", "Settle", "Queue") else f"a PS task may not {what}"
    if what not in _WORKERS_METHODS | _WORKERS_KINDS:
        return f"a worker may not {what}"
    client = getattr(message, "client", "") or (message.id.client if hasattr(message, "id") else "")
    if client == OWNER or (client in BOUND and client[1:33] != caller.mark):
        return f"a worker may not {what} in the name of {client}"
    if getattr(message, "candidate", "") or getattr(message, "chief_term", 0):
        return f"a worker may not {what} as chief"
    if (what == "push" and message.snapshot) or (what == "pull" and message.HasField("snapshot")):
        return "a worker may not take or read a snapshot"
    ops = getattr(message, "ops", ())
    if not workers_assign and what.lower() in ("push", "stage") and any(op.kind in _ASSIGNS for op in ops):
        return f"a worker may not assign ({what})"
    return ""


# ---- What a request may change -----------------------------------------------------------------------


class Picture:
    """The values of a shard, name by name, and its steps, at one moment."""

    def __init__(self, shard: Shard) -> None:
        self.values = {name: held.shaped.tobytes() for name, held in shard.now.store._held.items()}
        book = shard.now.ledger
        self.index = book.index if book is not None else 0
        self.steps = dict(book.steps) if book is not None else {}
        self.applied = shard.now.applied

    def changed(self, after: Picture) -> set[str]:
        """Names of the Variables that differ."""
        return {name for name, value in self.values.items() if after.values.get(name) != value}


class Model:
    """What a request of the data plane should do, worked out before it is carried out, by numpy alone.

    Args:
        shard: That gets it.
        request: The message.
        data: Its bytes.
        memory: Of its stream.
    """

    def __init__(self, shard: Shard, request: pb.Request, data: bytes, memory: LayoutMemory) -> None:
        self._shard = shard
        self._kind = request.WhichOneof("kind") or ""
        self._message = getattr(request, self._kind) if self._kind else None
        self._spans = bool(request.spans)
        self._data = data
        self.before = Picture(shard)
        self._may_change = self._named(memory) if self._kind in ("push", "commit", "pull") else set()
        self._expected = self._assigned() if self._kind == "push" else None

    def _named(self, memory: LayoutMemory) -> set[str]:
        """What this request, and the parts that wait here, name."""
        message = self._message
        ops: list[Any] = [*getattr(message, "ops", ())]
        number, known = getattr(message, "layout", 0), getattr(message, "known_layout", False)
        told, rows = memory._layouts.get(number), memory._row_layouts.get(number)
        if told is not None and known:
            ops += told.ops
        if rows is not None and known:
            ops += rows.changes
            told = told or rows
        uses = [*getattr(message, "uses", ()), *(told.uses if told is not None else ())]
        for staged in self._shard.now.staged.values():
            ops += [*staged.parts.ops, *(staged.parts.layout.ops if staged.parts.layout is not None else ())]
        store, names = self._shard.now.store, set()
        declared = {decl.name: decl for decl in store.optimizers}
        for op in ops:
            names.add(op.variable)
            if op.optimizer in declared:
                names.update(declared[op.optimizer].slots.get(op.variable, ()))
        # The sequencer's number of an optimizer comes with an entry, too: its scalars go on.
        finished = [use.optimizer for use in uses] if self._kind == "push" else list(declared)
        for name in finished:
            names.update(declared[name].scalars if name in declared else ())
        return names | {decl.name for decl in store.variables if decl.is_step}

    def _assigned(self) -> dict[str, Array] | None:
        """Values after a push's assignments; without the Variables that rules change. None where it is not simple."""
        message = self._message
        if self._spans or message.known_layout or message.snapshot or len(self._data) % 8:
            return None
        store = self._shard.now.store
        declared = {decl.name: decl for decl in store.optimizers}
        values = {name: held.shaped.copy() for name, held in store._held.items() if not held.decl.is_step}
        unsure: set[str] = set()
        try:
            ops = [codec.decode_op(op, memoryview(self._data)) for op in message.ops]
        except Exception:
            return None  # it will be refused
        for op in ops:
            if op.kind is OpKind.APPLY or op.indices is not None or op.source in unsure or op.variable not in values:
                unsure.add(op.variable)
                unsure.update(declared[op.optimizer].slots.get(op.variable, ()) if op.optimizer in declared else ())
                continue
            old = values[op.variable]
            try:
                given = values[op.source] if op.source else op.value if op.value is not None else op.fill
                with np.errstate(all="ignore"):
                    operand = np.broadcast_to(np.asarray(given).astype(old.dtype), old.shape)
            except (KeyError, ValueError, OverflowError, TypeError):  # the last: values that the shard is to draw
                return None
            if op.kind is not OpKind.ASSIGN and old.dtype == bool:
                return None  # it will be refused
            if op.kind is not OpKind.ASSIGN:
                with np.errstate(all="ignore"):
                    operand = old + operand if op.kind is OpKind.ASSIGN_ADD else old - operand
            values[op.variable] = operand.astype(old.dtype)
        for use in message.uses:
            unsure.update(declared[use.optimizer].scalars if use.optimizer in declared else ())
        return {name: value for name, value in values.items() if name not in unsure}

    def judge(self, reply: pb.Reply, pieces: Sequence[memoryview]) -> None:
        """Compare what has come of an accepted request with what should; raises Finding."""
        after = Picture(self._shard)
        wrong = self.before.changed(after) - self._may_change
        if wrong:
            raise Finding(f"a {self._kind} changed {sorted(wrong)}, which it does not name")
        if self._kind == "pull" and not reply.spans:
            self._judge_pull(reply.pull, pieces)
        if self._kind != "push":
            if self._kind != "commit" and after.steps != self.before.steps:
                raise Finding(f"a {self._kind} moved steps {self.before.steps} to {after.steps}")
            return
        outcome = reply.push.outcome
        new = after.index == self.before.index + 1
        if not new and after.steps != self.before.steps:
            raise Finding(f"a {self._kind} that took no index moved steps {self.before.steps} to {after.steps}")
        if not new or outcome.kind != pb.OUTCOME_ACCEPTED or outcome.index != after.index:
            return
        self._judge_steps(after)
        if self._expected is not None:
            for name, value in self._expected.items():
                if after.values[name] != value.tobytes():
                    raise Finding(f"an accepted push left {name} at {after.values[name]!r}, not {value.tobytes()!r}")

    def _judge_steps(self, after: Picture) -> None:
        message = self._message
        if message.known_layout:
            return
        assigned = {op.variable for op in message.ops if op.kind in _ASSIGNS}
        for step, value in self.before.steps.items():
            by = sum(increment.by for increment in message.increments if increment.step == step)
            if step not in assigned and after.steps.get(step) != value + by:
                raise Finding(f"step {step} went from {value} by {by} to {after.steps.get(step)}")

    def _judge_pull(self, reply: pb.PullReply, pieces: Sequence[memoryview]) -> None:
        if self._spans or self._message.cut_with or self._message.HasField("snapshot"):
            return
        data = b"".join(bytes(piece) + bytes(padded(piece.nbytes) - piece.nbytes) for piece in pieces)
        for read, ref in zip(self._message.reads, reply.values, strict=True):
            held = self._shard.now.store._held[read.variable]
            if held.decl.is_step:
                continue  # the sequencer tells those of pushes that are over
            rows: Any = slice(None)
            if read.HasField("indices"):
                rows = codec.decode_tensor(read.indices, memoryview(self._data))
            want = held.shaped[rows] if held.shaped.shape else held.shaped
            if data[ref.offset : ref.offset + want.nbytes] != want.tobytes():
                got = data[ref.offset : ref.offset + want.nbytes]
                raise Finding(f"a pull of {read.variable} gives {got!r}, not {want}, {want.dtype}\n{reply}")


# ---- Memory beyond arrays --------------------------------------------------------------------------------


class Canaries:
    """Puts bytes that nobody may touch before and behind the memory of Variables; use it in a `with` block."""

    _SIZE = 4096
    _BYTE = 0xA5

    def __init__(self) -> None:
        self._blocks: list[Array] = []
        self._numpy = arena.np

    def __getattr__(self, name: str) -> Any:
        return getattr(self._numpy, name)

    def zeros(self, count: int, dtype: Any) -> Array:
        """As numpy's, with canaries."""
        nbytes = count * np.dtype(dtype).itemsize
        block = np.full(2 * self._SIZE + nbytes, self._BYTE, np.uint8)
        self._blocks.append(block)
        inner = block[self._SIZE : self._SIZE + nbytes]
        inner[:] = 0
        return inner.view(dtype)

    def __enter__(self) -> Canaries:
        arena.np = self
        return self

    def __exit__(self, *exc: object) -> None:
        arena.np = self._numpy

    def look(self) -> None:
        """Raise Finding where one was touched."""
        for block in self._blocks:
            for part in (block[: self._SIZE], block[-self._SIZE :]):
                if not (part == self._BYTE).all():
                    at = int(np.flatnonzero(part != self._BYTE)[0])
                    part[:] = self._BYTE
                    raise Finding(f"memory beyond an array was written to, byte {at} of a canary")


# ---- Memory by byte, and memory that changes ----------------------------------------------------------------


#: What an input may take whatever its size: code that is loaded and compiled, and tables; and by byte of it.
_FREE_BYTES = 24 << 20
_BYTES_PER_BYTE = 128


@contextlib.contextmanager
def measured(nbytes: int, held_bytes: int) -> Iterator[None]:
    """Raise Finding where what is done takes too much memory for what came.

    Args:
        nbytes: Of the input.
        held_bytes: Of what it may refer to.
    """
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    most = _FREE_BYTES + _BYTES_PER_BYTE * nbytes + 8 * held_bytes
    if peak > most:
        raise Finding(f"{nbytes} bytes took more memory than {nbytes} bytes are worth: {peak >> 20} MiB at once")


@contextlib.contextmanager
def flipping(data: bytearray, rng: random.Random) -> Iterator[None]:
    """Have memory changed while it is read: before the call of some function, as another process might at any time.

    Args:
        data: What is changed.
        rng: Chooses what, when, and to what.
    """
    left = rng.randrange(1, 1500)
    at = 8 * rng.randrange(len(data) // 8 + 1)
    value = (rng.choice((*EDGES, -1)) & (2**64 - 1)).to_bytes(8, "little") * rng.choice((1, 3, 20))

    def called(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event in ("call", "c_call"):
            left -= 1
            if left == 0:
                size = min(len(value), len(data) - at)
                memoryview(data)[at : at + size] = value[:size]

    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


def held_bytes(shards: Collection[Shard]) -> int:
    """Bytes of all Variables."""
    return sum(shard.now.store.nbytes() for shard in shards)
