"""Every cell of the fault matrix in one process, over every transport (rung 3).

Each shows that I1 to I5 hold, and that its fault happened.
"""

from __future__ import annotations

import threading

import pytest
from fault_cluster import LAST_STEP, WAIT_SECS, FaultCluster, Killed, Watcher
from fault_matrix import FAULTS, MOMENTS, PAGE, SUBJECTS, cells, page, table
from pairwise import pairwise

from globalstep.errors import AbortedError, UnavailableError
from globalstep.runtime.faults import SEND
from globalstep.wire.declarations import OutcomeKind
from globalstep.worker.protocol import push_messages

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


def test_every_cell_is_tested_or_says_why_there_is_none():
    found = list(cells())
    assert len(found) == len(SUBJECTS) * len(FAULTS) * len(MOMENTS) == 120
    assert all(bool(cell.points) != bool(cell.impossible) for cell in found)
    assert sum(bool(cell.impossible) for cell in found) == 4


def test_the_page_shows_this_matrix():
    assert table() in page(PAGE.read_text())
