"""Every cell of the fault matrix in one process, over every transport (rung 3).

Each shows that I1 to I5 hold, and that its fault happened.
"""

from __future__ import annotations

import threading

import pytest
from branches import branches_of, taken
from fault_cluster import LAST_STEP, WAIT_SECS, FaultCluster, Killed, Watcher
from fault_matrix import FAULTS, MOMENTS, PAGE, SUBJECTS, cells, page, table
from pairwise import pairwise

from globalstep.errors import AbortedError, UnavailableError
from globalstep.runtime.faults import SEND
from globalstep.wire.declarations import OutcomeKind
from globalstep.worker.client import calls
from globalstep.worker.protocol import push_messages, push_protocol
from globalstep.worker.transport import shm_transport

#: Pushes before the first checkpoint, and from there to the fault.
BEFORE_SAVE, BEFORE_FAULT = 3, 2

#: Over these every point of every cell is tried always, and one over one of the others; `make nightly` tries all.
EVERY_POINT = ("local", "auto")
OTHERS = ("grpc", "tcp")
TRANSPORTS = (*EVERY_POINT, *OTHERS)
#: What the quick tier has: every two of a transport, a subject, a fault and a moment are together in some case.
QUICK = set(
    pairwise(
        (transport, cell.subject, cell.fault, cell.moment)
        for transport in TRANSPORTS
        for cell in cells()
        if cell.points
    )
)


def _marks(transport, at, cell, number):
    """Say in which tier a case is: the point of that number of the cell at that place."""
    if not number and (transport, cell.subject, cell.fault, cell.moment) in QUICK:
        return []
    # What carries the messages is tested by itself: tests/worker/transport.
    if transport in EVERY_POINT or (not number and transport == OTHERS[at % len(OTHERS)]):
        return [pytest.mark.long]
    return [pytest.mark.full_matrix]


CASES = [
    pytest.param(
        transport,
        cell,
        method,
        point,
        id=f"{transport}-{cell.name}-{method}.{point}",
        marks=_marks(transport, at, cell, number),
    )
    for transport in TRANSPORTS
    for at, cell in enumerate(cells())
    for number, (method, point) in enumerate(cell.points)
]


@pytest.fixture
def clusters(tmp_path, monkeypatch):
    """Make clusters; all are closed at the end."""
    # What needs no padding is copied into shared memory by the client, what does by the transport.
    monkeypatch.setattr(push_messages, "SMALL_BYTES", 1 << 20)
    made = []

    def make(transport):
        made.append(FaultCluster(transport, tmp_path))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
    for cluster in made:
        cluster.judge()


class Actor:
    """Does something on a thread of its own, which may be held or killed on the way."""

    def __init__(self, act):
        self.error = None
        self.result = None
        self._thread = threading.Thread(target=self._run, args=(act,), name="actor")
        self._thread.start()

    def _run(self, act):
        try:
            self.result = act()
        except BaseException as error:
            self.error = error

    def join(self):
        self._thread.join(WAIT_SECS)
        assert not self._thread.is_alive(), "the actor is stuck"


class Scene:
    """A cluster in the middle of its work, with a checkpoint behind it and a fault before it."""

    def __init__(self, cluster, cell, method, point):
        self.cluster, self.cell = cluster, cell
        self.chief, self.worker, self.other = (cluster.join(name) for name in ("chief", "worker", "other"))
        self.chief.start()
        self.watcher = Watcher(cluster)
        for program in (self.worker, self.other):
            program.client.refresh()
        for _ in range(BEFORE_SAVE):
            self.worker.push()
        assert self.chief.save() == BEFORE_SAVE
        self.chief.push()
        self.worker.push()
        assert self.watcher.look() == BEFORE_SAVE + BEFORE_FAULT
        self.injection = cluster.inject(cell.subject, cell.fault, method, point)

    def act(self):
        """What the fault happens to."""
        moment, subject = self.cell.moment, self.cell.subject
        if moment == "save" and subject != "worker":
            return self.chief.save
        if moment == "restore" and subject != "worker":
            self.cluster.lose(1)
            return self.chief.recover
        return (self.chief if subject == "chief" else self.worker).push

    def play(self):
        """Arm the fault, act, do what others do meanwhile; gives the actor, which has ended."""
        act = self.act()
        with self._beside():
            self.injection.arm()
            actor = Actor(act)
            assert self.injection.happened.wait(WAIT_SECS), "the fault did not happen"
            if self.cell.subject == "worker" and self.cell.moment == "restore" and self.cell.fault != "stop":
                assert self.watcher.look() is None
            if self.cell.fault == "stop":
                self._meanwhile()
            self.injection.go_on.set()
            actor.join()
        return actor

    def _beside(self):
        """The save or restore during which a worker's fault happens: it stands still meanwhile."""
        asleep = self.cell.moment == "restore" and self.cell.fault == "stop"
        if self.cell.subject != "worker" or self.cell.moment not in ("save", "restore") or asleep:
            return Beside(None, None)
        if self.cell.moment == "save":
            return Beside(self.chief, "write_snapshot")
        self.cluster.lose(1)
        return Beside(self.chief, "declare")

    def _meanwhile(self):
        """What the others do while somebody sleeps."""
        if self.cell.moment == "restore":
            if self.cell.subject == "worker":
                self.cluster.lose(1)
                assert self.chief.recover()
            else:
                # I4: nobody sees a half-restored model.
                assert self.watcher.look() is None
            return
        if self.cell.subject.startswith("ps"):
            return
        self.cluster.settle()
        for _ in range(2):
            self.other.push()
        assert self.watcher.look() is not None


class Beside:
    """Holds the chief's save or restore at a request that it is about to send, for the time of the block."""

    def __init__(self, chief, method):
        self._chief, self._method = chief, method
        self._there, self._go_on = threading.Event(), threading.Event()
        self._actor = None

    def at(self, point, method):
        if (point, method) == (SEND, self._method) and not self._go_on.is_set():
            self._there.set()
            assert self._go_on.wait(WAIT_SECS)

    def __enter__(self):
        if self._chief is not None:
            for connection in self._chief.transports:
                connection._faults = self
            self._actor = Actor(self._chief.save if self._method == "write_snapshot" else self._chief.recover)
            assert self._there.wait(WAIT_SECS)

    def __exit__(self, *exc):
        self._go_on.set()
        if self._actor is not None:
            self._actor.join()
            if self._actor.error is not None:
                raise self._actor.error


def after(scene, actor):
    """What sessions do about the fault; gives the programs that are still there."""
    cell, cluster = scene.cell, scene.cluster
    if cell.moment == "restore" and cell.subject == "worker" and cell.fault != "kill":
        # P10: nothing of the old life is applied.
        assert isinstance(actor.error, AbortedError), repr(actor.error)
    if isinstance(actor.error, Killed):
        cluster.settle()
        if cell.subject == "chief":
            scene.chief = cluster.join("chief")
        else:
            scene.worker = cluster.join("worker")
    elif actor.error is not None:
        assert isinstance(actor.error, (AbortedError, UnavailableError)), repr(actor.error)
    if cell.fault == "kill" and cell.subject.startswith("ps") and cell.moment != "restore":
        # I4: what lost its state serves nothing.
        assert scene.watcher.look() is None
    restored = scene.chief.recover()
    for program in (scene.worker, scene.other):
        program.client.refresh()
    return restored


@pytest.mark.parametrize(("transport", "cell", "method", "point"), CASES)
def test_a_cell(clusters, transport, cell, method, point):
    cluster = clusters(transport)
    scene = Scene(cluster, cell, method, point)
    actor = scene.play()
    after(scene, actor)
    assert scene.watcher.look() is not None
    scene.chief.save()
    programs = [scene.chief, scene.worker, scene.other]
    done = []
    while len(done) < len(programs):
        for program in programs:
            if program.push().kind is OutcomeKind.REFUSED_DONE and program not in done:
                done.append(program)
        cluster.deliver_late()
        scene.watcher.look()
    ends_exactly(scene)
    assert scene.injection.fired == 1


def ends_exactly(scene):
    """The end: I5, and I1 and I3 once more over the whole."""
    cluster = scene.cluster
    assert scene.watcher.look() == LAST_STEP
    assert scene.chief.save() == LAST_STEP
    assert all(values["global_step"] == step for step, (values, _) in cluster.checkpoints.items())
    places = [place for program in cluster.programs for place in program.accepted]
    life = scene.chief.client.incarnation
    base = max((step for step in cluster.checkpoints if step <= BEFORE_SAVE), default=0)
    seen = sum(incarnation == life for incarnation, _ in places)
    told = LAST_STEP - (base if scene.watcher.restores else 0) - seen
    # Who was killed may have had one push accepted that it was not told of.
    assert told in ((0, 1) if scene.cell.fault == "kill" else (0,)), told
    scene.chief.client.finish()
    assert all(shard.over() for shard in cluster.shards)


#: Cells whose programs together take every way that a push can take; what has two points is played at the first.
WAYS = (
    "ps:0-cut-before", "ps:0-kill-before", "ps:1-cut-before", "worker-stop-before", "worker-stop-restore",
    "worker-lost-between",
)  # fmt: skip
_LITTLE_MEMORY = "no fault here is a lack of memory"
_ONE_PARTICIPANT = (
    "every push here has two participants; PUSH is a message of its own: tests/worker/protocol/test_push_protocol.py"
)
_PACKED = "no numbers are packed here: tests/worker/protocol/test_wire_options.py"
#: Classes that are not looked at: see tests/worker/transport/test_block_pool.py.
_NOT_LOOKED_AT = ("BlockPool",)
#: Branch -> why no cell takes it, over any transport.
NOT_TAKEN = {
    "push: except ResourceExhaustedError": _LITTLE_MEMORY,
    "_push_together: except ResourceExhaustedError": _LITTLE_MEMORY,
    "_push_together: no_memory is not None and outcome.kind is OutcomeKind.ABANDONED": _LITTLE_MEMORY,
    "_push_together: except (*_REFUSALS, ResourceExhaustedError)": "no part is wrong: test_push_protocol.py",
    "push: self._packing.active": _PACKED,
    "push: rest and result.outcome.kind is OutcomeKind.ACCEPTED": _PACKED,
    "call: packs": _PACKED,
    "push: not (not parts.keys() <= {shard})": _ONE_PARTICIPANT,
    "push: except LayoutUnknownError": _ONE_PARTICIPANT,
    "push: accepted and len(values) < len(part.reads) and (not push.patience_ms)": _ONE_PARTICIPANT,
    "_applied_of: not answer.apply_micros": "every participant here has changes to make",
    "_whole: self._packing.active": _ONE_PARTICIPANT,
    "_whole: not message.known_layout": _ONE_PARTICIPANT,
    "_whole: push.patience_ms and (not others)": _ONE_PARTICIPANT,
    "_staging: item.contributions and (not item.closes)":
        "no push here is a contribution: tests/worker/waits/test_contributing.py, tests/ps/aggregates",
    "_push_together: except _REFUSALS": "no push here is wrong: tests/worker/protocol/test_push_protocol.py",
    "_gathered: 0 in places or (len(places) > 1 and any((place != outcome.index for place in places)))":
        "needs another push between a lost reply and its retry: test_push_protocol.py, the simulation",
    "_are_consistent: shard != sequencer and decided.pull.last.get(shard) != reply.pull.applied":
        "no push comes into a read here: tests/transcripts, the simulation",
    "_not_finite_in: message.reply is not None and message.reply.stage.not_finite":
        "all gradients here are finite: tests/ps/shard, tests/chief/training",
    "pull: not parts": "a read of nothing sends nothing",
    "pull: except LayoutUnknownError": "no read here has a layout: test_push_protocol.py, the simulation",
    "_take: except UnavailableError": "no connection breaks just when a block is asked for",
    "_take: except OpError": "no memory to share: tests/worker/transport/test_shm_transport.py",
    "_take: not self._pool.blocks": "no memory to share: tests/worker/transport/test_shm_transport.py",
    "_put: taken is None": "no memory to share: tests/worker/transport/test_shm_transport.py",
    "buffer: nbytes < SHARED_FROM_BYTES": "all gradients here are large: tests/worker/transport/test_shm_transport.py",
    "_placed: not place.block": "a PS task names a place only where it has put something",
    "_answered: load is None": "no task answers a call twice",
    "_placed: block is None or place.offset % 8 or place.offset + message.nbytes > block.nbytes":
        "no PS task here says what cannot be: tests/worker/transport/test_shm_transport.py",
}  # fmt: skip
#: Transport -> branch -> why no cell takes it there.
NOT_TAKEN_OVER = {
    "local": {
        f"{where}: except LayoutUnknownError": "no stream ends, so no layout is forgotten"
        for where in ("_push_together", "_decide")
    }
}


@pytest.mark.long
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_matrix_takes_every_way_of_a_push(clusters, transport):
    """What the client's code decides by, transports' abilities among it, is decided both ways under faults."""
    modules = [calls, push_protocol] + [shm_transport] * (transport == "auto")
    ways = {name for module in modules for name in branches_of(module, without=_NOT_LOOKED_AT).values()}
    # Control calls, and how long a call is tried: tests/worker/client/test_retry.py.
    ways = {name for name in ways if not name.startswith(("each: ", "wait: ", "answered: "))}
    allowed = {**NOT_TAKEN, **NOT_TAKEN_OVER.get(transport, {})}
    with taken(*modules) as found:
        for cell in cells():
            if cell.name in WAYS:
                test_a_cell(clusters, transport, cell, *cell.points[0])
    assert not sorted(ways - found - set(allowed))


def test_the_ways_that_the_matrix_does_not_take_are_there():
    known = {
        name
        for module in (calls, push_protocol, shm_transport)
        for name in branches_of(module, without=_NOT_LOOKED_AT).values()
    }
    assert not set(NOT_TAKEN).union(*NOT_TAKEN_OVER.values()) - known


def test_every_cell_is_tested_or_says_why_there_is_none():
    found = list(cells())
    assert len(found) == len(SUBJECTS) * len(FAULTS) * len(MOMENTS) == 120
    assert all(bool(cell.points) != bool(cell.impossible) for cell in found)
    assert sum(bool(cell.impossible) for cell in found) == 4


def test_the_page_shows_this_matrix():
    assert table() in page(PAGE.read_text())
