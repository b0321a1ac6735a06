"""Two PS tasks with a run, and requests to them: good ones, and such as somebody has changed.

What is answered with an error must not have changed anything, and must say clearly what was wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_choices import Finding, mutated, noise
from fuzz_declared import DeclaredUse
from fuzz_messages import MessageFuzzer
from fuzz_senses import (
    BOUND,
    CALLERS,
    OWNER,
    PS_TASK,
    Canaries,
    Model,
    Picture,
    flipping,
    forbidden,
    held_bytes,
    measured,
)
from google.protobuf.message_factory import GetMessageClass

from globalstep import errors
from globalstep.errors import GlobalStepError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.authorization import ANONYMOUS, CALLER, Authorization, Caller, Role
from globalstep.ps.budget import Budget
from globalstep.ps.members.presence import State
from globalstep.ps.queues import queue_store
from globalstep.ps.service.control import Control
from globalstep.ps.service.handler import Handler
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.shard.shard import Shard
from globalstep.ps.store import checking
from globalstep.runtime.clock import ManualClock
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, PushId, Read, VariableDecl, padded
from globalstep.wire.expressions import Expr, constant, step
from globalstep.wire.packing import pack
from globalstep.wire.queue_elements import encode_element

Array = np.ndarray[Any, Any]

#: What a task believes its machine has left.
_MEMORY_BYTES = 1 << 26
#: Largest tensor bytes of a message.
LIMIT_BYTES = 1 << 26
_METHODS = [m for m in pb.DESCRIPTOR.services_by_name["ParameterServer"].methods if m.name != "Exchange"]
_CLIENTS = (OWNER, "a", "b", "c", *BOUND)
_ON = {0: ("step", "w", "w/m", "w/v", "s", "p1", "p2"), 1: ("e", "e/m", "e/v", "u", "n")}
_SHAPES = {"step": (), "w": (5,), "s": (), "p1": (), "p2": (), "e": (6, 3), "u": (2, 2), "n": (4,)}
_DTYPES = {"step": "int64", "n": "int32"}
_WORDS = (
    *_CLIENTS, *_ON[0], *_ON[1], "", "adam", "sgd", "moving_average", "gradient_descent", "learning_rate", "beta1",
    "beta1_power", "epsilon", "float32", "float64", "int64", "int32", "bool", "const", "name", "add", "where", "drop",
    "stop", "log", "checkpoint", "/job:worker/task:0",
)  # fmt: skip


class FuzzedTasks:
    """Shard 0, the sequencer, and shard 1 of a run, in this process.

    Args:
        rng: Chooses the run's policy.
        folder: Where they may write.
        answers: Counts what was answered to each call.
        canaries: Look at the memory around arrays.
    """

    def __init__(self, rng: random.Random, folder: Path, answers: Counter[tuple[str, str]], canaries: Canaries) -> None:
        self._answers = answers
        self.canaries = canaries
        # From 0 on: incarnations up to the wall clock's milliseconds are spent when a task starts.
        self.clock = ManualClock()
        self._folder = folder
        checking.available_bytes = lambda: _MEMORY_BYTES
        self.tasks = [
            Control(
                Handler(
                    Shard(self.clock, budget=Budget(4 * LIMIT_BYTES, self.clock, patience_secs=0.0)),
                    limit_bytes=LIMIT_BYTES,
                ),
                "p",
                "h",
                log_dir=str(folder / "log"),
            )
            for _ in range(2)
        ]
        self.workers_assign = bool(rng.randrange(2))
        for task in self.tasks:
            task.handler.authorization = Authorization(self.clock, workers_assign=self.workers_assign)
        self.streams = [LayoutMemory() for _ in self.tasks]
        #: By caller, those of each task.
        self.streams_of: dict[Caller, list[LayoutMemory]] = {
            caller: [task.handler.stream_memory(caller) for task in self.tasks] for caller in (*CALLERS, PS_TASK)
        }
        self.streams_of[ANONYMOUS] = self.streams
        self.declared = DeclaredUse()
        self.inputs = 0
        self.sequence = dict.fromkeys(_CLIENTS, 0)
        self.answers: list[pb.Reply] = []
        self._snapshot = PushId("owner", 1)
        special: dict[str, Callable[[random.Random], Any]] = {
            "incarnation": lambda rng: rng.choice((7, 7, 7, 7, 7, 6, 8, 0)),
            "client": lambda rng: rng.choice(_CLIENTS),
            "sequence": lambda rng: rng.randrange(1, max(self.sequence.values()) + 3),
            "shard": lambda rng: rng.randrange(3),
            "shards": lambda rng: rng.choice((2, 2, 2, 1, 3)),
            "sequencer": lambda rng: rng.randrange(3),
            "participants": lambda rng: rng.randrange(3),
            "shape": lambda rng: rng.choice((0, 1, 2, 3, 4, 5, 6, -1, 2**38, 2**62)),
            "offset": lambda rng: rng.choice((0, 0, 8, 16, 24, 40, 72, 4, 2**20, 2**63)),
            "layout": lambda rng: rng.randrange(4),
            "rows": lambda rng: rng.choice((0, 1, 2, 3, 4, 2**32 - 1)),
            "index": lambda rng: rng.choice((self._index(), self._index() + 1, 0, 1, 2**63)),
            "previous": lambda rng: rng.choice((self._index(), self._index() - 1 & 0xFFFF, 0, 2**63)),
            "ledger": lambda rng: mutated(rng, self._dumped()),
            "owner": lambda rng: "owner",
            "snapshot": lambda rng: codec.encode_push_id(self._snapshot),
            "id": lambda rng: pb.PushId(client=(client := rng.choice(_CLIENTS)), sequence=self.sequence[client] + 1),
            "life": lambda rng: rng.choice(("", "1", self._life())),
            "max_records": lambda rng: rng.choice((0, 1, 100, 2**32 - 1)),
            "kind": lambda rng: rng.choice(("adam", "gradient_descent", "momentum", "moving_average", "ftrl", "none")),
            "probe_file": lambda rng: "probe",
            "probe_text": lambda rng: "probe",
            "file": lambda rng: "shard.safetensors",
            "directory": lambda rng: str(rng.choice((folder, folder / "run", folder / "no" / "where"))),
            "sequencer_address": lambda rng: "",
            # A declaration of gigabytes that somebody may make is a Variable; memory has its own limits.
            "bytes": lambda rng: rng.choice((0, 4, 8, 20, 64, 1 << 20, 1 << 40)),
            # A call that waits takes real time.
            "wait_millis": lambda rng: rng.choice((0, 0, 1)),
            "packed_bytes": lambda rng: rng.choice((0, 4, 8, 20, 64, 1 << 20, 1 << 40)),
        }
        self.fuzzer = MessageFuzzer(_WORDS, special, closed=("directory", "sequencer_address", "wait_millis"))
        (folder / "probe").write_text("probe")
        policy = pb.RunPolicy(
            staleness=rng.choice(("accept", "drop", "scale")),
            on_nan=rng.choice(("apply", "drop", "stop")),
        )
        for shard, task in enumerate(self.tasks):
            begin = pb.BeginRequest(incarnation=7, shard=shard, shards=2, sequencer=0, owner="owner", policy=policy)
            begin.key = bytes(32)
            begin.directory, begin.run.id = str(folder / "run"), "a"
            # As by gRPC: so the task knows by which id the chief goes.
            task.handler.authorization.check_method(Caller(Role.CHIEF), "Begin", begin)
            task.call("Begin", begin)
            task.call("Declare", _declaration(shard))
            assigns = [Op(OpKind.ASSIGN, name, fill=0.0 if name == "step" else 0.5) for name in _ON[shard]]
            if shard:
                self._do(shard, *self._staged("owner", 2, shard, assigns, []))
            else:
                first = self._staged("owner", 2, shard, assigns, [], "push")
        self._push_with_other(*first, uses=False)
        for shard, task in enumerate(self.tasks):
            task.call("Open", pb.OpenRequest(incarnation=7, client="owner"))
            for client in _CLIENTS:
                task.call("Heartbeat", pb.HeartbeatRequest(client=client, lease_secs=60.0))
            if shard:
                self._do(shard, *self._dense("a", shard, layout=1, known=False, stage=True))
        second = self._dense("a", 0, layout=1, known=False, stage=False)
        second[0].push.id.sequence = self.sequence["a"] = self.sequence["a"] - 1
        self._push_with_other(*second)
        snapshot = pb.Request(push=pb.PushRequest(incarnation=7, snapshot=True))
        snapshot.push.id.client, snapshot.push.id.sequence = "owner", 3
        self._snapshot = PushId("owner", 3)
        self._do(0, snapshot, b"")

    # ---- What is there --------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether the run is still there; a good request may have ended it, or begun another."""
        shards = [task.handler.shard for task in self.tasks]
        return all(s.view(brief=True).state == State.READY and s.view(brief=True).incarnation == 7 for s in shards)

    def tidy(self) -> None:
        """Have clients that are gone forgotten now: any push may do so, also one that is refused."""
        for task in self.tasks:
            shard = task.handler.shard
            if shard.now.ledger is not None and shard.now.ledger.table.crowded(self.clock.monotonic()):
                shard.resources.forget_gone(shard.now.ledger)

    def digest(self) -> bytes:
        """All that a refused request may not change: values, steps, limits, the index, and what became of pushes."""
        found = hashlib.blake2b()
        for task in self.tasks:
            shard = task.handler.shard
            for name, held in shard.now.store._held.items():
                found.update(f"{name}{held.initialized}{held.decl}".encode())
                found.update(held.flat.tobytes())
            book = shard.now.ledger
            told = (book.index, book.steps, book.limits, book.stopped, _decided(book.table.copied()())) if book else ()
            view = (shard.now.applied, shard.now.number, shard.now.state, shard.now.store.optimizers, shard.now.policy)
            found.update(repr((told, view)).encode())
        return found.digest()

    def _index(self) -> int:
        book = self.tasks[0].handler.shard.now.ledger
        return book.index if book is not None else 0

    def _life(self) -> str:
        book = self.tasks[0].handler.shard.now.ledger
        return book.journal._life if book is not None and book.journal is not None else ""

    def _dumped(self) -> bytes:
        book = self.tasks[0].handler.shard.now.ledger
        return book.dumped_later()() if book is not None else b"{}"

    # ---- Good requests --------------------------------------------------------------------------

    def _do(self, shard: int, request: pb.Request, data: bytes) -> pb.Reply:
        reply, _ = self.tasks[shard].handler.begin(request, memoryview(bytearray(data)), self.streams[shard])
        if reply.HasField("error"):
            raise RuntimeError(f"a request that is good was refused: {reply.error}")
        return reply

    def _push_with_other(self, request: pb.Request, data: bytes, uses: bool = True) -> None:
        """Have the sequencer decide on a push of which the other task has a part, and tell that task."""
        request.push.others.append(1)
        if uses and not request.push.uses:
            request.push.uses.append(pb.OptimizerUse(optimizer="adam", finish=True))
        reply = self._do(0, request, data)
        commit = pb.Request(commit=pb.CommitRequest(incarnation=7, entries=reply.push.pending[0].entries))
        commit.commit.id.CopyFrom(request.push.id)
        self._do(1, commit, b"")

    def _next(self, client: str) -> int:
        self.sequence[client] += 1
        return self.sequence[client]

    def _staged(
        self, client: str, sequence: int, shard: int, ops: list[Op], reads: list[Read], kind: str = "stage"
    ) -> tuple[pb.Request, bytes]:
        request, tensors = pb.Request(), TensorWriter()
        self.sequence[client] = max(sequence, self.sequence[client])
        message = getattr(request, kind)
        message.incarnation, message.id.client, message.id.sequence = 7, client, sequence
        for op in ops:
            codec.encode_op(op, message.ops.add(), tensors)
        codec.encode_reads(reads, message.reads, tensors)
        return request, b"".join(bytes(p) + bytes(padded(p.nbytes) - p.nbytes) for p in tensors.pieces)

    def _dense(self, client: str, shard: int, layout: int, known: bool, stage: bool) -> tuple[pb.Request, bytes]:
        name = "we"[shard]
        op = Op(OpKind.APPLY, name, np.full(_SHAPES[name], 0.25, np.float32), optimizer="adam")
        kind = "stage" if stage else "push"
        sequence = self.sequence[client] if shard and stage else self._next(client)
        request, data = self._staged(client, max(sequence, 1), shard, [op], [Read(name)], kind)
        message = getattr(request, kind)
        message.layout, message.known_layout = layout, known
        if known:
            del message.ops[:]
            del message.reads[:]
        if not stage:
            request.push.uses.append(pb.OptimizerUse(optimizer="adam", finish=True))
            request.push.increments.append(pb.Increment(step="step", by=1))
            request.push.seen_steps["step"] = 0
        return request, data

    def good(self, rng: random.Random) -> tuple[int, pb.Request, bytes]:
        """Make a request that a worker might send: shard, message, data."""
        client, shard = rng.choice(_CLIENTS), rng.randrange(2)
        kind = rng.randrange(11)
        if kind <= 1:
            return (shard, *self._dense(client, shard, rng.randrange(3), bool(rng.randrange(2)), stage=kind == 1))
        if kind == 2:
            ids = np.array([rng.randrange(6) for _ in range(rng.randrange(5))], np.int64)
            rows = Op(OpKind.APPLY, "e", np.ones((ids.size, 3), np.float32), indices=ids, optimizer="adam")
            request, data = self._staged(client, self._next(client), 1, [rows], [Read("e", ids)])
            request.stage.layout, request.stage.known_layout = rng.randrange(3), bool(rng.randrange(2))
            if request.stage.known_layout:
                request.stage.rows.extend((ids.size, rng.choice((ids.size, ids.size, ids.size + 1, 2**32 - 1))))
                del request.stage.ops[:]
                del request.stage.reads[:]
            return 1, request, data
        if kind == 3:
            name = rng.choice(_ON[shard])
            shape = _SHAPES[name.partition("/")[0]]
            value = np.full(shape, 2, _DTYPES.get(name, "float32"))
            op = Op(rng.choice((OpKind.ASSIGN, OpKind.ASSIGN_ADD, OpKind.ASSIGN_SUB)), name, value)
            request, data = self._staged(client, self._next(client), shard, [op], [Read(name)], "push")
            return shard, request, data
        request = pb.Request()
        if kind == 4:
            request.push.incarnation, request.push.snapshot = 7, rng.randrange(4) == 0
            request.push.others.extend(rng.choice(((0, 1), (1,), (0,), ())))
            request.push.id.client, request.push.id.sequence = client, self.sequence[client] + rng.randrange(2)
            request.push.increments.append(pb.Increment(step="step", by=1))
            request.push.uses.append(pb.OptimizerUse(optimizer="adam", finish=True))
            return 0, request, b""
        if kind == 5:
            known = [reply for reply in self.answers if reply.push.pending and reply.push.pending[0].entries]
            if known:
                reply = rng.choice(known)
                request.commit.entries.extend(reply.push.pending[0].entries)
                request.commit.id.CopyFrom(reply.push.pending[0].entries[-1].push)
            else:
                self.fuzzer.fill(rng, request.commit)
            request.commit.incarnation = 7
            return 1, request, b""
        if kind == 6:
            name = rng.choice(_ON[shard])
            request.pull.incarnation, request.pull.client = 7, client
            request.pull.reads.add(variable=name)
            return shard, request, b""
        if kind == 7:
            request.pull.incarnation, request.pull.client = 7, client
            request.pull.floors.add(shard=1, index=self._index())
            return 0, request, b""
        if kind == 8:
            request.pull.incarnation = 7
            request.pull.snapshot.CopyFrom(codec.encode_push_id(self._snapshot))
            return 0, request, b""
        return shard, request, b""

    # ---- Inputs ---------------------------------------------------------------------------------

    def data_plane(self, rng: random.Random) -> None:
        """Send a request of the data plane, as it is, changed, or made up."""
        if rng.randrange(10) == 0:
            self._declare(rng)
        used = self.declared.use(rng, self._next, lambda: "a") if rng.randrange(3) == 0 else None
        shard, request, data = self.good(rng) if used is None else (0, *used)
        # What uses a declaration has to get as far as the rule.
        kind = rng.randrange(8 if used is None else 32)
        if kind == 0:
            request = pb.Request()
            self.fuzzer.fill(rng, getattr(request, rng.choice(request.DESCRIPTOR.oneofs[0].fields).name))
        elif kind <= 5:
            self.fuzzer.mutate(rng, request)
        if rng.randrange(4 if used is None else 32) == 0:
            data = mutated(rng, data) if rng.randrange(2) else noise(rng, 200)
        if rng.randrange(6 if used is None else 32) == 0 and len(data) % 8 == 0:
            request, data = _packed(rng, request, data)
            if rng.randrange(2):
                self.fuzzer.mutate(rng, request)
        if rng.randrange(64) == 0:
            # Few bytes that say to be many.
            request.spans.add(form=pb.FORM_NONZERO, bytes=rng.choice((64, 1 << 20, LIMIT_BYTES)), packed_bytes=0)
        others = () if used is not None else (*CALLERS, PS_TASK)
        caller = rng.choice((*CALLERS, ANONYMOUS, ANONYMOUS, ANONYMOUS, *others))
        self._send(rng, shard, request, data, caller)

    def _declare(self, rng: random.Random) -> None:
        """Declare something as a worker's program does; some of it is wrong."""
        message, told = self.declared.declare(rng)
        before = self.digest()
        try:
            self.tasks[0].call("Declare", message)
        except Exception as error:
            self._answers["Declare", type(error).__name__] += 1
            self._judge(error, type(error).__name__, message)
            self._compare(before, message, str(error))
        else:
            self._answers["Declare", "OK"] += 1
            self.declared.accepted(told, message)

    def _send(self, rng: random.Random, shard: int, request: pb.Request, data: bytes, caller: Caller) -> None:
        """Carry a request out, with all senses."""
        stream = self.streams_of[caller][shard]
        task = self.tasks[shard].handler
        self.tidy()
        before, model = self.digest(), Model(task.shard, request, data, stream)
        buffer = bytearray(data)
        self.inputs += 1
        sparse = any(op.HasField("indices") for op in request.push.ops)
        changes = rng.randrange(3 if sparse else 32) == 0
        sent = request.ByteSize() + len(data)
        with contextlib.ExitStack() as senses:
            if request.spans or rng.randrange(64) == 0:
                senses.enter_context(measured(sent, held_bytes([task.shard])))
            if changes:
                senses.enter_context(flipping(buffer, rng))
            reply, pieces = task.begin(request, memoryview(buffer), stream, shared=changes)
        self.canaries.look()
        self._look_at_budget(task.shard, request)
        what = request.WhichOneof("kind") or ""
        self._answers[f"Exchange {what or None}", reply.error.type if reply.HasField("error") else "OK"] += 1
        if reply.HasField("error"):
            self._judge(errors.error_from_code(reply.error.code, reply.error.message), reply.error.type, request)
            self._compare(before, request, reply.error.message)
            return
        if (wrong := forbidden(caller, what, getattr(request, what), self.workers_assign)) != "":
            raise Finding(f"{wrong}, and was let\n{request}")
        [memoryview(piece).tobytes() for piece in pieces]
        self.answers = [*self.answers[-7:], reply]
        if not changes:
            self._ask_model(model, reply, pieces, request)

    @staticmethod
    def _ask_model(model: Model, reply: pb.Reply, pieces: list[memoryview], request: pb.Request) -> None:
        try:
            model.judge(reply, pieces)
        except Finding as finding:
            raise Finding(f"{finding}\n{request}") from None

    def control(self, rng: random.Random) -> None:
        """Make a unary call."""
        method = rng.choice(_METHODS)
        message = GetMessageClass(method.input_type)()
        shard = rng.randrange(2)
        told = None
        if rng.randrange(3):
            if method.name == "Queue":
                message.CopyFrom(_queue_call(rng))
            elif method.name == "Declare":
                if rng.randrange(2):
                    shard, message, told = 0, *self.declared.declare(rng)
                else:
                    message.CopyFrom(_declaration(shard))
                if told is None and rng.randrange(2):
                    self.fuzzer.fill(rng, message.variables.add(name=rng.choice("xyz"), shard=shard, dtype="float32"))
            else:
                self.fuzzer.prepare(rng, message)
            if told is None or rng.randrange(2):
                self.fuzzer.mutate(rng, message)
        else:
            self.fuzzer.fill(rng, message)
        if method.name in ("Begin", "Finish", "Stop", "Recover") and rng.randrange(4):
            # Now and then it is let through: the tasks are of no use after it.
            if method.name == "Stop":
                message.force = False
            elif message.incarnation > 7 or method.name == "Finish":
                message.incarnation = rng.randrange(7)
        self.clock.advance(rng.choice((0.0, 0.0, 0.1, 30.0)))
        caller = rng.choice((*CALLERS, ANONYMOUS, ANONYMOUS, ANONYMOUS, PS_TASK))
        self.tidy()
        before, values = self.digest(), [Picture(task.handler.shard) for task in self.tasks]
        context = CALLER.set(caller)
        try:
            with contextlib.ExitStack() as senses:
                if rng.randrange(64) == 0:
                    shards = [task.handler.shard for task in self.tasks]
                    senses.enter_context(measured(message.ByteSize(), held_bytes(shards)))
                # As every call that comes by gRPC.
                self.tasks[shard].handler.authorization.check_method(caller, method.name, message)
                self.tasks[shard].call(method.name, message).SerializeToString()
        except Finding:
            raise
        except Exception as error:
            self._answers[method.name, type(error).__name__] += 1
            self._judge(error, type(error).__name__, message)
            self._compare(before, message, str(error))
        else:
            self._answers[method.name, "OK"] += 1
            if (wrong := forbidden(caller, method.name, message, self.workers_assign)) != "":
                raise Finding(f"{wrong}, and was let\n{message}")
            if told is not None:
                self.declared.accepted(told, message)
            if method.name not in ("Begin", "Recover", "Finish", "Stop"):
                self._unchanged(values, method.name, message)
        finally:
            CALLER.reset(context)
            self.canaries.look()
            if method.name in ("Queue", "Leave", "Begin"):
                self._look_at_queues(self.tasks[shard].queues._store, message)

    @staticmethod
    def _look_at_budget(shard: Shard, message: Any) -> None:
        """Once a call is answered, memory is claimed for what waits and what is kept for retries, and nothing else."""
        claims = {one.parts.claim for one in shard.now.staged.values()}
        claims |= {kept.claim for kept in shard.now.replies.by_client.values()}
        held = sum(claim.nbytes for claim in claims if claim is not None)
        kinds, _ = shard.resources.budget.view()
        counted = sum(kinds.get(kind, 0) for kind in ("requests", "replies", "staged parts", "kept replies"))
        if held != counted:
            raise Finding(f"parts and replies hold {held} bytes, and {counted} are counted: {kinds}\n{message}")

    @staticmethod
    def _look_at_queues(store: Any, message: Any) -> None:
        """What queues hold is what is counted, and within their bounds."""
        kept = [one for client in store._clients.values() for call in client.slots.values() for one in call.kept]
        inside = [one for queue in store.queues.values() for one in queue.elements]
        held = sum(one.nbytes for one in (*kept, *inside)) + queue_store._QUEUE_BYTES * len(store.queues)
        counted = store._budget.view()[0].get("queues", 0)
        if held != counted or held > store._budget.half:
            raise Finding(f"queues hold {held} bytes, and {counted} are counted\n{message}")
        if any(len(queue.elements) > 64 >= queue.attributes.capacity >= 0 for queue in store.queues.values()):
            raise Finding(f"a queue holds more than its capacity\n{message}")

    def _unchanged(self, before: list[Picture], method: str, message: Any) -> None:
        """Calls that are not for values change none."""
        for task, picture in zip(self.tasks, before, strict=True):
            if changed := picture.changed(Picture(task.handler.shard)):
                raise Finding(f"{method} changed {sorted(changed)}\n{message}")

    def _judge(self, error: Exception, type_name: str, request: Any) -> None:
        known = getattr(errors, type_name, None)
        if known is None or not issubclass(known, GlobalStepError) or issubclass(known, errors.InternalError):
            raise Finding(f"answered with {type_name}: {error}\n{request}") from error
        if not str(error):
            raise Finding(f"answered with {type_name} and no text\n{request}")

    def _compare(self, before: bytes, request: Any, text: str) -> None:
        if self.digest() != before:
            raise Finding(f"refused, and something changed all the same: {text}\n{request}")


def _decided(table: dict[str, Any]) -> dict[str, Any]:
    """Give a table of pushes without those that were abandoned: an ADMIT that is refused takes its push back."""
    kept = {
        client: told | {"outcomes": [one for one in told["outcomes"] if one[1] != int(pb.OUTCOME_ABANDONED)]}
        for client, told in table.items()
    }
    # In no order: who is refused is who was heard last.
    return {client: told for client, told in sorted(kept.items()) if told["outcomes"] or told["forgotten"]}


def _queue_call(rng: random.Random) -> pb.QueueRequest:
    """Make a call to one of few queues, as a client would: in a slot, numbered."""
    queue = pb.QueueAttributes(name=rng.choice("qr"), kind="FIFOQueue", capacity=3, dtypes=["float32", "string"])
    queue.shapes.extend(["(2,)", "()"])
    request = pb.QueueRequest(queue=queue, what=rng.choice((1, 1, 1, 2, 2, 2, 3, 4)), client=rng.choice("abc"))
    request.slot, request.number = rng.randrange(2), rng.randrange(1, 50)
    request.taken, request.count, request.total = max(request.number - rng.randrange(3), 0), rng.randrange(3), 1
    request.cancel, request.allow_fewer = rng.random() < 0.5, rng.random() < 0.5
    request.elements.append(encode_element([np.ones(2, np.float32), b"text"]))
    return request


def _declaration(shard: int) -> pb.DeclareRequest:
    slots = {name: tuple(slot for slot in _ON[shard] if slot.startswith(f"{name}/")) for name in ("we"[shard],)}
    rate = Expr("where", (Expr("less", (step("step"), constant(3))), constant(0.1), constant(0.05)))
    hypers = {"learning_rate": rate, **{n: constant(0.9) for n in ("beta1", "beta2", "epsilon")}}
    variables = [
        VariableDecl(
            name, _DTYPES.get(name, "float32"), _SHAPES[name.partition("/")[0]], shard, is_step=name == "step",
            primary=name.partition("/")[0] if "/" in name else "", optimizer="adam" if "/" in name else "",
        )
        for name in _ON[shard]
    ]  # fmt: skip
    adam = OptimizerDecl("adam", "adam", hypers, slots, ("p1", "p2"))
    return pb.DeclareRequest(
        incarnation=7,
        client="owner",
        variables=[codec.encode_variable(decl) for decl in variables],
        optimizers=[codec.encode_optimizer(adam)],
    )


def _packed(rng: random.Random, request: pb.Request, data: bytes) -> tuple[pb.Request, bytes]:
    """Pack the data as a worker with WireOptions does."""
    form = rng.choice((pb.FORM_BFLOAT16, pb.FORM_FLOAT16))
    pieces = pack(
        [(memoryview(data), "float32")], form, request.spans, lambda n: np.empty(n, np.uint8), bool(rng.randrange(2))
    )
    return request, b"".join(bytes(piece) + bytes(padded(piece.nbytes) - piece.nbytes) for piece in pieces)


class TaskTargets:
    """Inputs to tasks that are made anew every so many inputs. Not thread-safe.

    Args:
        answers: Counts what was answered to each call.
        lifetime: Inputs that one run sees.
    """

    def __init__(self, answers: Counter[tuple[str, str]], lifetime: int = 100) -> None:
        self._answers = answers
        self._lifetime = lifetime
        self._left = 0
        self._tasks: FuzzedTasks | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="globalstep-fuzz-")
        self._guards = contextlib.ExitStack()

    def tasks(self, rng: random.Random) -> FuzzedTasks:
        """Give the tasks for the next input."""
        self._left -= 1
        if self._tasks is None or self._left <= 0 or not self._tasks.usable:
            if self._tasks is not None:
                for task in self._tasks.tasks:
                    task.durability.close()
            self._folder.cleanup()
            self._folder = tempfile.TemporaryDirectory(prefix="globalstep-fuzz-")
            self._guards.close()
            canaries = self._guards.enter_context(Canaries())
            self._tasks = FuzzedTasks(rng, Path(self._folder.name), self._answers, canaries)
            self._left = self._lifetime
        return self._tasks

    def renew(self) -> None:
        """Have the next input meet new tasks."""
        self._left = 0

    def data_plane(self, rng: random.Random) -> None:
        """A request of the data plane."""
        self.tasks(rng).data_plane(rng)

    def control(self, rng: random.Random) -> None:
        """A unary call."""
        self.tasks(rng).control(rng)

    def close(self) -> None:
        """Remove what it has written."""
        if self._tasks is not None:
            for task in self._tasks.tasks:
                task.durability.close()
        self._guards.close()
        self._folder.cleanup()
