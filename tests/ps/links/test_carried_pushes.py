"""Small pushes over several PS tasks that go through the sequencer, over real connections in one process."""

from __future__ import annotations

import random
import threading

import pytest
from counting_run import declarations, expected, initialize, linked, sent_by, state, step_push

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import InternalError, InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.ledger import CarriedPart, Entry, EntryKind
from globalstep.ps.ledger.signatures import Signer
from globalstep.ps.links.parked_call import LONGEST_SECS, blocked_call
from globalstep.ps.links.voter import Voter, dropped, staged
from globalstep.ps.service.push_decoding import carried_parts
from globalstep.ps.shard import events
from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.statistics import Traffic
from globalstep.ps.wal.recovery import play_again
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import MOST_CARRIED_BYTES, OutcomeKind, PushId, StopLimit

READS = ("w", "b", "e")
KEY = bytes(range(32))


def promised(servers, client):
    """Push until the links stand and all other tasks have promised the layout; gives how many pushes that were."""
    pushes = linked(servers, client)
    client.push(step_push(reads=READS))
    return pushes + 1


def begun(serving, joined):
    """Two tasks, a client over unix sockets, and how many pushes it has made until its layout was promised."""
    servers = serving(2)
    client = joined(servers, "unix")
    initialize(client)
    return servers, client, promised(servers, client)


@pytest.mark.parametrize("transport", ["auto", "unix", "tcp", "grpc"])
@pytest.mark.parametrize("shards", [2, 3])
def test_a_push_is_one_message_to_the_sequencer_and_one_question_to_each_other(serving, joined, transport, shards):
    servers = serving(shards)
    client = joined(servers, transport)
    initialize(client)
    pushes = promised(servers, client)
    kinds = sent_by(client)
    for _ in range(5):
        result = client.push(step_push(reads=READS))
        pushes += 1
        wanted = expected(pushes)
        assert [value.tolist() for value in result.values] == [wanted[name] for name in READS]
    others = len({client.where[name] for name in READS} - {client.sequencer})
    assert kinds == [*["commit"] * others, "admit"] * 5
    assert state(client) == expected(pushes)
    assert all(not server.shard.now.staged for server in servers)


def test_workers_that_push_alike_share_a_promise(serving, joined):
    servers = serving(2)
    initialize(joined(servers, "unix"))
    clients = [joined(servers, "unix") for _ in range(3)]
    pushes = 0
    for client in clients:
        client.refresh()
        pushes += promised(servers, client)
    other = servers[1 - clients[0].sequencer].shard.now
    assert len(other.promised._layouts) <= 2  # with reads, and perhaps without
    assert state(clients[0]) == expected(pushes)


def test_what_is_too_large_goes_by_votes(serving, joined, monkeypatch):
    monkeypatch.setattr("globalstep.worker.protocol.push_protocol.MOST_CARRIED_BYTES", 8)
    _, client, pushes = begun(serving, joined)
    kinds = sent_by(client)
    client.push(step_push(reads=READS))
    assert kinds == ["stage", "admit"]
    assert state(client) == expected(pushes + 1)


def test_a_carried_part_counts_as_received_by_its_participant(serving, joined):
    servers, client, _ = begun(serving, joined)
    other = servers[1 - client.sequencer]
    traffic = other.control.handler.traffic
    (layout,) = other.shard.now.promised._layouts[-1:]
    before, _ = traffic.view()
    for _ in range(3):
        client.push(step_push(reads=READS))
    assert traffic.view()[0] - before == 3 * layout.data_bytes


@pytest.mark.parametrize("policy", [RunPolicy(on_nan="drop"), RunPolicy(durability="log")])
def test_nothing_is_promised_where_parts_are_looked_at_before_the_decision(serving, joined, tmp_path, policy):
    servers = serving(2)
    client = joined(servers, "unix", policy)
    client.begin(open=True, sequencer=1, run=RunIdentity(directory=str(tmp_path)))
    initialize(client)
    pushes = promised(servers, client)
    kinds = sent_by(client)
    client.push(step_push(reads=READS))
    assert kinds == ["stage", "admit"]
    assert state(client) == expected(pushes + 1)


def test_a_task_that_comes_back_from_its_log_promises_nothing(serving, joined, tmp_path):
    """Its parts are on its disk before they are decided on; one that came with an entry is in no log."""
    servers = serving(2)
    client = joined(servers, "unix", RunPolicy(durability="log"))
    client.begin(open=True, sequencer=1, run=RunIdentity(directory=str(tmp_path)))
    initialize(client)
    promised(servers, client)
    servers[0].shard.log.secure(all_of_it=True)
    (directory,) = tmp_path.rglob("shard-0-of-2")
    shard = play_again(directory, ManualClock()).shard
    assert shard.now.applied == servers[0].shard.now.applied
    assert not shard.now.promised._layouts


def test_a_layout_is_still_good_after_another_declaration(serving, joined):
    _, client, pushes = begun(serving, joined)
    variables, optimizers = declarations(2)
    more = [type(one)(f"{one.name}_too", one.dtype, one.shape, one.shard) for one in variables if not one.is_step]
    client.declare([*variables, *more], optimizers)
    for _ in range(2):
        client.push(step_push(reads=READS))
    assert state(client) == expected(pushes + 2)


def test_at_the_limit_everybody_is_answered_at_once(serving, joined):
    servers, client, pushes = begun(serving, joined)
    client.open([StopLimit("global_step", last_step=pushes + 1)])
    kinds = sent_by(client)
    outcomes = [client.push(step_push(reads=READS)).outcome.kind for _ in range(3)]
    assert outcomes == [OutcomeKind.ACCEPTED, OutcomeKind.REFUSED_DONE, OutcomeKind.REFUSED_DONE]
    assert kinds == ["commit", "admit"] * 3
    assert all(
        server.control.handler.voting.voter.is_idle or not server.control.handler.voting.voter._parked
        for server in servers
    )
    assert state(client) == expected(pushes + 1)


def test_a_link_that_is_cut_before_the_push_has_it_go_the_longer_way(serving, joined):
    servers, client, pushes = begun(serving, joined)
    other = servers[1 - client.sequencer]
    other._links.stop()
    other.control.handler.voting.voter._link.end()
    while servers[client.sequencer].control.handler.voting.count._lines:
        client.push(step_push(reads=READS))
        pushes += 1
        client._protocol._by_votes._pause_secs = 0.0
    for _ in range(2):
        client.push(step_push(reads=READS))
        client._protocol._by_votes._pause_secs = 0.0
    assert state(client) == expected(pushes + 2)


def test_after_a_new_incarnation_layouts_are_promised_anew(serving, joined):
    servers, client, _ = begun(serving, joined)
    client.begin(open=True, sequencer=client.sequencer)
    initialize(client)
    assert all(not server.shard.now.promised._layouts for server in servers)
    pushes = promised(servers, client)
    kinds = sent_by(client)
    client.push(step_push(reads=READS))
    assert kinds == ["commit", "admit"]
    assert state(client) == expected(pushes + 1)


def test_a_liars_part_is_nothing_and_stops_nobody(serving, joined):
    """A number that nobody was promised: the entry is one of nothing there, and the others' pushes go on."""
    servers, client, pushes = begun(serving, joined)
    other = servers[1 - client.sequencer].shard
    for known in client._protocol.messages._splits.values():
        for one in known.known.values():
            one.promised = 99 if one.promised else 0
    with pytest.raises(InternalError, match="gave no value"):
        client.push(step_push(reads=READS))
    assert [push.client for push in other.resources.of_nothing] == [client._protocol.run.client]
    honest = joined(servers, "unix")
    honest.refresh()
    honest.push(step_push(reads=READS))
    names = {name for name, shard in honest.where.items() if shard == honest.sequencer}
    assert {name: state(honest)[name] for name in names} == {name: expected(pushes + 2)[name] for name in names}


@pytest.mark.parametrize(
    ("participants", "carried", "said"),
    [
        ([0, 1, 2], {1: 8}, "must be a push, and have the parts of all others or of none"),
        ([0, 1], {1: 8, 2: 8}, "must be a push"),
        ([0, 1], {1: MOST_CARRIED_BYTES + 8}, "are the most"),
    ],
)
def test_parts_of_others_are_all_there_and_small(participants, carried, said):
    message = pb.AdmitRequest(kind=pb.ENTRY_PUSH, participants=participants)
    message.carried.extend(pb.CarriedPart(shard=at, layout=1, data=bytes(n)) for at, n in carried.items())
    with pytest.raises(InvalidArgumentError, match=said):
        carried_parts(message, 0)


def test_an_entry_is_signed_with_its_part():
    signer = Signer(KEY, 7)
    entry = Entry(3, EntryKind.PUSH, PushId("a", 1), 2)
    bare = signer.decision(3, EntryKind.PUSH, entry.push, ()).for_shard(1, 2)
    entry.part = CarriedPart(4, bytes(8))
    entry.signature = signer.carrying(bare, entry.part)
    assert signer.is_entry(1, entry)
    for part in (None, CarriedPart(5, bytes(8)), CarriedPart(4, bytes(7) + b"\1"), CarriedPart(4, bytes(16))):
        entry.part = part
        assert not signer.is_entry(1, entry)
    entry.part, entry.signature = CarriedPart(4, bytes(8)), bare
    assert not signer.is_entry(1, entry)


@pytest.mark.long
@pytest.mark.parametrize("carries", [False, True])
def test_clients_whose_links_are_cut_all_the_time_make_exactly_their_steps(serving, joined, carries):
    servers = serving(3)
    servers[0].control.carries = carries
    initialize(joined(servers, "auto"))
    clients = [joined(servers, transport) for transport in ("auto", "unix", "grpc")]
    failures = []

    def work(client):
        try:
            client.refresh()
            for _ in range(40):
                client._protocol._by_votes._pause_secs = 0.0
                client.push(step_push())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(client,), name="pusher") for client in clients]
    for thread in threads:
        thread.start()
    rng = random.Random(5)
    while any(thread.is_alive() for thread in threads):
        link = rng.choice(servers).control.handler.voting.voter._link
        if link is not None and rng.random() < 0.3:
            link.end()
        threads[0].join(0.01)
    assert failures == []
    assert state(clients[0]) == expected(120)


# ---- The call that waits, on a participant --------------------------------------------------------


class PlayedLink:
    """A connection to the sequencer on which nothing is heard."""

    incarnation = 7

    def send(self, request):
        """Nobody is there."""

    def end(self):
        """Nobody notices."""


@pytest.fixture
def voter():
    clock = ManualClock()
    shard = Shard(clock)
    shard.handle(events.Begin(7, shard=1, shards=2, sequencer=0, owner="owner", opened=True, key=KEY))
    voter = Voter(shard, lambda answer, into, tensors: None, Traffic())
    voter.clock, voter.link_here = clock, PlayedLink()
    voter.linked(voter.link_here)
    return voter


def waiting(voter, calls, sequence=1):
    def park():
        call, _ = blocked_call(voter.clock.monotonic())
        calls.append(call)
        return call

    return voter.wait(voter.link_here, PushId("a", sequence), park)


@pytest.mark.parametrize(("told", "answer"), [("dropped", dropped), ("undecided", staged)])
def test_who_asks_after_the_sequencer_has_spoken_is_answered_at_once(voter, told, answer):
    push = pb.PushId(client="a", sequence=1)
    voter.hear(voter.link_here, [pb.Decisions(**{told: [push]})])
    calls = []
    assert waiting(voter, calls) is answer
    assert calls == []
    assert waiting(voter, calls) is None  # it was told once
    voter.hear(voter.link_here, [pb.Decisions(**{told: [push]})])
    assert calls[0].make is answer


def test_a_call_that_is_made_again_waits_no_longer_for_it(voter):
    calls = []
    for _ in range(3):
        assert waiting(voter, calls) is None
        voter.clock.advance(0.4 * LONGEST_SECS)
    assert [call.make for call in calls] == [staged, staged, None]
    voter.look_after(voter.clock.monotonic())
    assert calls[2].make is staged


def test_without_a_link_nobody_waits(voter):
    calls = []
    assert waiting(voter, calls) is None
    voter.ended(voter.link_here)
    assert calls[0].make is staged
    assert waiting(voter, calls) is staged
