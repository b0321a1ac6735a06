"""Gradients that leave as the backward pass produces them: when they are used, and when the push brings its own."""

from __future__ import annotations

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError, LayoutUnknownError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import drop, named
from globalstep.ps.server import PSServer
from globalstep.ps.shard.layouts import Layout, LayoutMemory
from globalstep.tf1.graph.graph import Graph
from globalstep.wire.codec import decode_op

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

CONFIG = gs.ConfigProto(gradients_ahead=True)


@pytest.fixture
def memory():
    """A stream that knows a layout of two tensors, 16 and 8 bytes of data."""
    memory = LayoutMemory()
    layout = Layout([pb.Op(kind=pb.OP_APPLY, variable=name) for name in "ab"], decode_op, [], [], [], 24)
    memory.tell(1, layout, 100)
    memory.remember()
    return memory


def part(*values):
    return np.array(values, np.float32).data.cast("B")


def test_data_sent_ahead_is_put_together_in_any_order_and_serves_once(memory):
    memory.put_early(1, 16, part(5))
    memory.put_early(1, 0, part(1, 2, 3, 4))
    data = memory.take_early(1)
    assert np.frombuffer(data, np.float32, 5).tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(LayoutUnknownError, match="sent early"):
        memory.take_early(1)


def test_data_of_which_some_is_missing_does_not_serve(memory):
    memory.put_early(1, 0, part(1, 2, 3, 4))
    memory.put_early(1, 0, part(1, 2, 3, 4))
    with pytest.raises(LayoutUnknownError, match="Not all data"):
        memory.take_early(1)


@pytest.mark.parametrize("offset", [4, 24, 1 << 60])
def test_data_without_a_place_is_refused(memory, offset):
    with pytest.raises(InvalidArgumentError, match="have no place"):
        memory.put_early(1, offset, part(1, 2))


def test_an_unknown_layout_is_refused(memory):
    with pytest.raises(LayoutUnknownError):
        memory.put_early(2, 0, part(1, 2))


class Transports:
    """Counts pushes and stages by whether their data was there already, and may lose what is sent ahead."""

    def __init__(self, session):
        self.seen = []
        self.lose = False
        for transport in session.cluster.run.transports:
            self._watch(transport)

    def _watch(self, transport):
        send = transport.send

        def watched(request, pieces):
            kind = request.WhichOneof("kind")
            if kind in ("push", "stage"):
                self.seen.append((getattr(request, kind).ahead, sum(piece.nbytes for piece in pieces)))
            if kind == "ahead" and self.lose:
                request.ahead.layout += 1000
            return send(request, pieces)

        transport.send = watched


def build(clip=False):
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    x, y = gs.placeholder(gs.float32, [None, 3]), gs.placeholder(gs.float32, [None, 2])
    loss = gs.torch(module, lambda m, a, b: ((m(a) - b) ** 2).mean(), [x, y])
    step = gs.train.get_or_create_global_step()
    optimizer = gs.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    if clip:
        pairs = [(gs.clip_by_norm(grad, 0.1), variable) for grad, variable in pairs]
    return x, y, step, optimizer.apply_gradients(pairs, global_step=step)


def train(target, config, steps=6, clip=False, lose_from=None):
    with Graph().as_default(), gs.Session(target, config=config, reuse_values=True) as session:
        x, y, step, train_op = build(clip)
        session.run(gs.global_variables_initializer())
        transports = Transports(session)
        random = np.random.default_rng(2)
        for number in range(steps):
            transports.lose = lose_from is not None and number >= lose_from
            session.run(train_op, {x: random.normal(size=(4, 3)), y: random.normal(size=(4, 2))})
        assert session.run(step) == steps
        return session.run(gs.trainable_variables()), transports.seen


@pytest.fixture(params=["1 task", "2 tasks", "shm", "unix", "grpc", "tcp"])
def targets(request, monkeypatch):
    """Two runs' targets, of the same kind."""
    if request.param.endswith(("task", "tasks")):
        names = ["ahead-1", "ahead-2"]
        for name in names:
            named(name, int(request.param[0]))
        yield [f"local://{name}" for name in names]
        for name in names:
            drop(name)
        return
    monkeypatch.setenv("GLOBALSTEP_TRANSPORT", request.param)
    servers = [PSServer() for _ in range(4)]
    for server in servers:
        server.start()
    yield ["grpc://" + ",".join(server.address for server in servers[at::2]) for at in (0, 1)]
    for server in servers:
        server.close()


def test_all_gradients_leave_ahead_and_the_values_are_the_same(targets):
    strict, seen = train(targets[0], None)
    assert not any(ahead for ahead, _ in seen)
    ahead, seen = train(targets[1], CONFIG)
    for one, other in zip(strict, ahead, strict=True):
        np.testing.assert_array_equal(one, other)
    # The first push describes the layout; all later ones find their data there.
    used = [nbytes for was_ahead, nbytes in seen if was_ahead]
    assert len(used) >= 0.6 * len(seen)
    assert set(used) == {0}


def test_clipped_gradients_come_with_their_push(targets):
    strict, _ = train(targets[0], None, clip=True)
    ahead, seen = train(targets[1], CONFIG, clip=True)
    for one, other in zip(strict, ahead, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(was_ahead for was_ahead, _ in seen)


def test_a_push_whose_data_was_lost_on_the_way_sends_it_again(targets):
    strict, _ = train(targets[0], None)
    ahead, seen = train(targets[1], CONFIG, lose_from=3)
    for one, other in zip(strict, ahead, strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(was_ahead for was_ahead, _ in seen)
