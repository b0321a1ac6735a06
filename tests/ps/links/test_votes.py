"""Pushes over several PS tasks by votes, over real connections in one process."""

from __future__ import annotations

import os
import random
import threading
from unittest import mock

import numpy as np
import pytest
from counting_run import declarations, expected, initialize, linked, sent_by, state, step_push

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import InvalidArgumentError, PermissionDeniedError, ResourceExhaustedError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.caller import Caller, Role
from globalstep.ps.ledger.ledger import Entry, EntryKind, Ledger
from globalstep.ps.links.parked_call import LONGEST_SECS, OpenCall, blocked_call
from globalstep.ps.links.vote_count import Asked, VoteCount, _LineOf
from globalstep.ps.links.voting import Voting
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.ps.wal import log_file
from globalstep.runtime.clock import ManualClock
from globalstep.security.credentials import holder_of, new_client_id
from globalstep.testing.faults import BEFORE
from globalstep.wire.declarations import Op, OpKind, PushId
from globalstep.wire.message import Message
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.protocol.push_messages import Part
from globalstep.worker.protocol.push_protocol import PushByVotes
from globalstep.worker.transport.grpc_transport import transports_to

KEY = bytes(range(32))


@pytest.mark.parametrize("transport", ["auto", "unix", "tcp", "grpc"])
@pytest.mark.parametrize("shards", [2, 3])
def test_a_push_is_one_message_to_each_participant(serving, joined, transport, shards):
    servers = serving(shards)
    client = joined(servers, transport)
    initialize(client)
    pushes = linked(servers, client)
    kinds = sent_by(client)
    for _ in range(5):
        client.push(step_push(reads=("w", "b", "e")))
    parts = len({client.where[name] for name in ("w", "b", "e")} - {client.sequencer})
    assert kinds == [*["stage"] * parts, "admit"] * 5
    assert state(client) == expected(pushes + 5)


@pytest.mark.parametrize("transport", ["unix", "grpc"])
def test_a_push_over_two_tasks_with_logs_waits_for_two_syncs(serving, joined, transport, tmp_path, monkeypatch):
    servers = serving(2)
    client = joined(servers, transport, RunPolicy(durability="log"))
    client.begin(open=True, sequencer=1, run=RunIdentity(directory=str(tmp_path)))
    initialize(client)
    pushes = linked(servers, client)
    syncs, real = [], os.fdatasync
    monkeypatch.setattr(log_file.os, "fdatasync", lambda file: (syncs.append(file), real(file)))
    for _ in range(50):
        client.push(step_push())
    assert client.global_steps()["global_step"] == pushes + 50
    # Each task has one; and now and then one more, of what nobody waits for.
    assert 100 <= len(syncs) < 125
    assert state(client) == expected(pushes + 50)


def test_the_sequencer_keeps_an_entry_until_it_is_on_the_participants_disk(serving, joined, tmp_path):
    servers = serving(2)
    client = joined(servers, "unix", RunPolicy(durability="log"))
    client.begin(open=True, sequencer=1, run=RunIdentity(directory=str(tmp_path)))
    initialize(client)
    linked(servers, client)
    sequencer, other = servers[client.sequencer].shard, servers[1 - client.sequencer]
    other._settler.stop()
    last = client.push(step_push()).outcome.index
    ledger = sequencer.now.ledger
    while ledger.visible != ledger.steps:
        client.global_steps()
    assert last in [entry.index for entry in ledger.pending(1 - client.sequencer, last)]
    client.push(step_push())  # its vote says so
    client.push(step_push())
    assert last not in [entry.index for entry in ledger.pending(1 - client.sequencer, last)]


def test_a_part_that_is_wrong_changes_nothing_anywhere(serving, joined):
    servers = serving(2)
    client = joined(servers, "auto")
    initialize(client)
    pushes = linked(servers, client)
    elsewhere = next(name for name in ("w", "b", "e") if client.where[name] != client.sequencer)
    before = state(client)
    wrong = step_push()
    wrong.ops.append(Op(OpKind.ASSIGN_ADD, elsewhere, value=np.zeros((7, 7), np.float32)))
    with pytest.raises(InvalidArgumentError):
        client.push(wrong)
    assert state(client) == before
    assert all(not server.shard.now.staged for server in servers)
    client.push(step_push())
    assert state(client) == expected(pushes + 1)


class Door:
    """Refuses the next request of a kind when it has come; a test's faults."""

    def __init__(self, server, method, error):
        self.refusals = [(method, error)]
        server.control.handler._faults = self

    def at(self, point, method):
        if point == BEFORE and self.refusals and self.refusals[0][0] == method:
            raise self.refusals.pop()[1]


@pytest.mark.parametrize("transport", ["unix", "grpc"])
@pytest.mark.parametrize("method", ["stage", "admit"])
def test_a_push_that_is_refused_at_a_door_is_waited_for_nowhere(serving, joined, transport, method):
    servers = serving(2)
    client = joined(servers, transport)
    initialize(client)
    pushes = linked(servers, client)
    kinds = sent_by(client)
    refusing = client.sequencer if method == "admit" else 1 - client.sequencer
    Door(servers[refusing], method, InvalidArgumentError("not through this door"))
    with pytest.raises(InvalidArgumentError, match="not through this door"):
        client.push(step_push())
    assert kinds == ["stage", "admit"]  # the sequencer did not answer "undecided" after a while
    assert all(not server.shard.now.staged for server in servers)
    Door(servers[refusing], method, ResourceExhaustedError("no memory", retry_secs=0.001))
    kinds.clear()
    client.push(step_push())
    assert kinds == ["stage", "admit"] * 2
    assert state(client) == expected(pushes + 1)


def test_a_part_that_its_client_sends_again_under_its_id_is_voted_for_then(serving, joined):
    servers = serving(2)
    client = joined(servers, "unix")
    initialize(client)
    pushes = linked(servers, client)
    kinds = sent_by(client)
    Door(servers[1 - client.sequencer], "stage", UnavailableError("for a moment"))
    before = client._protocol._sequence
    client.push(step_push())
    assert kinds == ["stage", "admit", "stage"]
    assert client._protocol._sequence == before + 1
    assert state(client) == expected(pushes + 1)


@pytest.mark.parametrize("transport", ["unix", "grpc"])
def test_an_admitted_push_whose_admit_comes_again_without_memory_for_it_counts_once(serving, joined, transport):
    """Under another id it would be applied twice."""
    servers = serving(2)
    client = joined(servers, transport)
    initialize(client)
    pushes = linked(servers, client)
    sequencer = client.run.transports[client.sequencer]
    send, lost = sequencer.send, []

    def once_lost(request, pieces):
        ticket = send(request, pieces)
        if lost or not request.HasField("admit"):
            return ticket
        lost.append(request)

        def result():
            ticket.result()
            Door(servers[client.sequencer], "admit", ResourceExhaustedError("no memory", retry_secs=0.001))
            raise UnavailableError("the reply is lost")

        return mock.Mock(result=result)

    sequencer.send = once_lost
    client.push(step_push())
    assert lost
    assert servers[client.sequencer].control.handler.faults.refusals == []
    assert state(client) == expected(pushes + 1)


@pytest.mark.parametrize("kind", [pb.ENTRY_PUSH, pb.ENTRY_SNAPSHOT])
def test_a_worker_that_asks_for_a_snapshot_under_the_id_of_its_push_is_denied_it(serving, joined, kind):
    servers = serving(2)
    client = joined(servers, "unix")
    initialize(client)
    linked(servers, client)
    request = pb.Request(admit=pb.AdmitRequest(incarnation=client.incarnation, kind=kind, votes=True))
    request.admit.participants.extend([0, 1])
    request.admit.id.CopyFrom(pb.PushId(client=client._protocol.run.client, sequence=client._protocol._sequence))
    handler = servers[client.sequencer].control.handler
    caller = Caller(Role.WORKER, mark=holder_of(client._protocol.run.client))
    reply, _ = handler.begin(request, memoryview(b""), handler.stream_memory(caller))
    # Of its push it hears again what became of that.
    assert reply.error.type == ("" if kind == pb.ENTRY_PUSH else "PermissionDeniedError"), reply


@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_a_refused_request_harms_no_push_of_another_client(serving, whose):
    handler = serving(1)[0].control.handler
    handler.voting.refused = mock.Mock(return_value=None)
    theirs = new_client_id()
    caller = Caller(Role.WORKER, mark=holder_of(theirs) if whose == "its own" else "another")
    for kind in ({"stage": pb.StageRequest(vote=True)}, {"admit": pb.AdmitRequest(votes=True)}):
        request = pb.Request(**kind)
        getattr(request, next(iter(kind))).id.CopyFrom(pb.PushId(client=theirs, sequence=1))
        handler.voting.refused.reset_mock()
        reply, _ = handler.begin(request, memoryview(b"odd"), handler.stream_memory(caller))
        assert "must be padded" in reply.error.message
        assert handler.voting.refused.called == (whose == "its own")


def test_a_link_that_is_cut_costs_no_push_and_is_dialled_anew(serving, joined):
    servers = serving(2)
    client = joined(servers, "unix")
    initialize(client)
    pushes = linked(servers, client)
    for _ in range(3):
        for server in servers:
            link = server.control.handler.voting.voter._link
            if link is not None:
                link.end()
        for _ in range(4):
            client.push(step_push())
        pushes += 4 + linked(servers, client)
        assert state(client) == expected(pushes)


def test_tasks_without_links_take_pushes_the_longer_way(serving, joined):
    servers = serving(2)
    for server in servers:
        server._links.stop()
    client = joined(servers, "unix")
    initialize(client)
    kinds = sent_by(client)
    for _ in range(3):
        client.push(step_push())
    assert "commit" in kinds
    assert state(client) == expected(3)


def test_a_cluster_with_a_task_that_takes_no_votes_is_asked_for_none(serving, joined):
    servers = serving(2)
    servers[1].control.votes = False
    client = joined(servers, "unix")
    initialize(client)
    kinds = sent_by(client)
    client.push(step_push())
    assert kinds.count("commit") == 1
    assert state(client) == expected(1)


def of_before_votes(transport):
    """Have a transport be one of a client that knew neither votes nor contributions; gives what is sent over it."""
    unary, send, sent = transport.unary, transport.send, []

    def asked(method, request, timeout_secs):
        call = unary(method, request, timeout_secs)
        if method != "Status":
            return call
        reply = call.result()
        for unknown in ("votes", "row_layouts", "aggregates", "behind"):
            reply.ClearField(unknown)
        return mock.Mock(result=lambda: reply)

    def watched(request, pieces):
        sent.append(request)
        return send(request, pieces)

    transport.unary, transport.send = asked, watched
    return sent


@pytest.mark.parametrize("durability", ["checkpoint", "log"])
@pytest.mark.parametrize(("shards", "transport"), [(1, "unix"), (2, "unix"), (2, "grpc")])
def test_clients_from_before_votes_train_exactly_beside_those_of_today(
    serving, joined, tmp_path, shards, transport, durability
):
    servers = serving(shards)
    today = joined(servers, transport, RunPolicy(durability=durability))
    today.begin(open=True, sequencer=shards - 1, run=RunIdentity(directory=str(tmp_path)))
    initialize(today)
    transports = transports_to(",".join(server.address for server in servers), transport)
    sent = [of_before_votes(each) for each in transports]
    older = ClusterClient(transports, rng=random.Random(4))
    older.refresh()
    for _ in range(8):
        for client in (today, older):
            client.push(step_push(reads=("w", "b", "e")))
    assert older.global_steps() == {"global_step": 16}
    assert state(older) == state(today) == expected(16)
    older.close()
    assert not older.run.joined.votes
    assert today.run.joined.votes
    requests = [request for of_task in sent for request in of_task]
    assert not any(request.stage.vote or request.admit.votes for request in requests)
    assert any(request.HasField("push" if shards == 1 else "commit") for request in requests)


def test_a_commit_brings_every_participant_its_entry_though_some_were_told_over_their_links():
    """One was told of the decision, and its link was cut before it had heard; the other one had no link by then."""

    def decided(*shards):
        pending = [pb.ShardEntries(shard=shard) for shard in shards]
        return Message(0, None, pb.Reply(admit=pb.AdmitReply(pending=pending)), memoryview(b""))

    protocol = mock.Mock()
    protocol.admit.return_value = full = decided(1, 2)
    protocol.commit.return_value = {}
    kept = Message(0, None, pb.Reply(stage=pb.StageReply()), memoryview(b""))
    push = PushId("a", 1)
    PushByVotes(protocol)._committed(
        push, step_push(), {0: Part(), 1: Part(), 2: Part()}, decided(2), {1: kept, 2: kept}
    )
    protocol.commit.assert_called_once_with(push, full, [1, 2])


# ---- The count of votes, without a connection ------------------------------------------------------------


class PlayedLine:
    """A connection that keeps what is sent on it."""

    def __init__(self):
        self.told = []
        self.ended = None

    def tell(self, decisions):
        self.told.append(decisions)

    def when_ended(self, ended):
        self.ended = ended


@pytest.fixture
def sequencer():
    shard = Shard(ManualClock())
    begin = events.Begin(7, shard=0, shards=3, sequencer=0, owner="owner", opened=True, key=KEY)
    shard.handle(begin)
    variables, optimizers = declarations(1)
    shard.handle(events.Declare(7, "owner", variables, optimizers))
    return shard


@pytest.fixture
def count(sequencer):
    return VoteCount(sequencer)


def greet(count, sequencer, shard):
    line = PlayedLine()
    greeting = sequencer.now.signer.greeting(shard)
    count.hear(pb.VoteRequest(incarnation=7, shard=shard, greeting=greeting), line)
    return line


def vote(count, line, shard, sequence=1, **more):
    push = pb.PushId(client="a", sequence=sequence)
    count.hear(pb.VoteRequest(incarnation=7, shard=shard, votes=[pb.Vote(push=push, **more)]), line)


def ask(count, decided, sequence=1):
    parked = []

    def park():
        call, _ = blocked_call(0.0)
        parked.append(call)
        return call

    def decide(not_finite):
        decided.append(not_finite)
        return lambda reply, tensors: None

    asked, _ = count.ask(PushId("a", sequence), {1, 2}, decide, park)
    return asked, parked


def test_a_push_is_decided_by_the_last_vote(count, sequencer):
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    decided = []
    vote(count, lines[1], 1)
    assert ask(count, decided)[0] is Asked.PARKED
    vote(count, lines[1], 1)
    assert decided == []
    vote(count, lines[2], 2)
    assert decided == [""]


def test_votes_may_come_before_what_they_are_for(count, sequencer):
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    for shard, line in lines.items():
        vote(count, line, shard)
    assert ask(count, [])[0] is Asked.READY


def test_a_vote_counts_for_an_admit_that_comes_while_the_vote_is_looked_at(count, sequencer, monkeypatch):
    """They come on two connections, each with a thread; the vote's waits for the shard in between."""
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    decided, asked, handle = [], [], Shard.handle

    def slowly(shard, event):
        answer = handle(shard, event)
        if isinstance(event, events.Recorded) and not asked:
            asked.append(None)  # the ADMIT's own look
            asked[0] = ask(count, decided)
        return answer

    monkeypatch.setattr(Shard, "handle", slowly)
    vote(count, lines[1], 1)
    assert asked[0][0] is Asked.PARKED
    vote(count, lines[2], 2)
    assert decided == [""]
    assert not any(told.undecided for line in lines.values() for told in line.told)


def test_what_is_not_finite_somewhere_comes_with_the_decision(count, sequencer):
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    decided = []
    ask(count, decided)
    vote(count, lines[1], 1, not_finite="w")
    vote(count, lines[2], 2)
    assert decided == ["w"]


class Watched(Entry):
    """An entry that knows how often it was looked at."""

    looks = 0

    def __getattribute__(self, name):
        Watched.looks += name == "index"
        return super().__getattribute__(name)


def test_a_decision_costs_the_same_however_many_entries_wait_for_a_floor():
    ledger, line = Ledger(2, 0), PlayedLine()
    ledger.declare_step("step")
    held, most = _LineOf(line, 7, False), []
    for client in range(100):
        push = PushId(f"client{client}", 1)
        index = ledger.admit(push, EntryKind.PUSH, (0, 1), (), (), 0).index
        ledger._pending[1][-1] = Watched(index, EntryKind.PUSH, push, index - 1)
        Watched.looks = 0
        held.send(ledger.pending(1, index))
        most.append(Watched.looks)
    assert [[entry.index for entry in told.entries] for told in line.told] == [[at + 1] for at in range(100)]
    assert most[1:] == [most[1]] * 99
    assert [entry.index for entry in ledger.pending(1, 40)] == list(range(1, 41))


def test_a_second_copy_ends_the_count(count, sequencer):
    """Its client may go on under another id from then on."""
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    decided = []
    _, parked = ask(count, decided)
    assert ask(count, decided)[0] is Asked.UNDECIDED
    assert parked[0].make is not None
    for shard, line in lines.items():
        vote(count, line, shard)
    assert ask(count, decided)[0] is Asked.UNDECIDED
    assert decided == []


def test_a_late_copy_of_an_earlier_admit_takes_nothing_back(count, sequencer):
    """What was asked for once is not asked for the first time again."""
    line = greet(count, sequencer, 1)

    def asked(sequence):
        return count.ask(PushId("a", sequence), {1}, None, lambda: blocked_call(0.0)[0])[0]

    assert [asked(sequence) for sequence in (2, 1, 2)] == [Asked.PARKED, Asked.UNDECIDED, Asked.UNDECIDED]
    assert line is not None


def test_a_part_that_was_refused_fences_the_push(count, sequencer):
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    vote(count, lines[1], 1)
    vote(count, lines[2], 2, withheld=True)
    assert sequencer.handle(events.Recorded(PushId("a", 1))).kind.name == "ABANDONED"
    assert [list(told.dropped) for told in lines[1].told] == [[pb.PushId(client="a", sequence=1)]]
    assert ask(count, [])[0] is Asked.READY


@pytest.mark.parametrize("who", ["participant", "sequencer"])
def test_a_vote_for_a_push_that_was_refused_is_answered_at_once(count, sequencer, who):
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    if who == "sequencer":
        assert not count.refuse(7, PushId("a", 1), {1, 2})
    else:
        vote(count, lines[2], 2, withheld=True)
    lines[1].told.clear()
    vote(count, lines[1], 1)
    assert [list(told.dropped) for told in lines[1].told] == [[pb.PushId(client="a", sequence=1)]]


def test_without_a_line_to_each_nothing_is_decided_by_votes(count, sequencer):
    greet(count, sequencer, 1)
    assert ask(count, [])[0] is Asked.UNDECIDED


def test_a_line_that_ends_answers_what_waits_for_it(count, sequencer):
    greet(count, sequencer, 1)
    line = greet(count, sequencer, 2)
    _, parked = ask(count, [])
    line.ended()
    assert parked[0].make is not None
    assert count.is_idle


def test_a_link_that_begins_hears_of_pushes_that_were_left_meanwhile(count, sequencer):
    """Its shard has used it since it dialled: a call that waits there for such a push would wait in vain."""
    first = greet(count, sequencer, 1)
    assert ask(count, [])[0] is Asked.UNDECIDED
    second = greet(count, sequencer, 2)
    assert [told.undecided[0].sequence for line in (first, second) for told in line.told] == [1, 1]


def test_an_admit_whose_copy_was_answered_undecided_in_between_is_so_too(sequencer, count):
    """Two connections, of which the first one's call is resumed while the second one's copy drops the part."""
    voting, push = Voting(sequencer, lambda *_: None, mock.Mock()), PushId("a", 1)
    voting.count = count
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    for shard, line in lines.items():
        vote(count, line, shard)
    sequencer.handle(events.Stage(7, push, PushParts()))
    request = pb.Request()
    request.admit.incarnation, request.admit.votes = 7, True
    request.admit.participants.extend([0, 1, 2])
    request.admit.id.client, request.admit.id.sequence = "a", 1

    def admission():
        return events.Admit(7, push, EntryKind.PUSH, [0, 1, 2], (), (), {})

    def decide(admit, reply, tensors, voters):
        sequencer.handle(admit)

    first = voting.admit(OpenCall(request, mock.Mock()), push, admission, decide)
    second, replies = voting.admit(OpenCall(request, mock.Mock()), push, admission, decide), [pb.Reply(), pb.Reply()]
    for make, reply in zip((second, first), replies, strict=True):
        make(reply, None)
    assert [reply.admit.undecided for reply in replies] == [True, True]


def test_calls_are_answered_after_a_while(count, sequencer, caplog):
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    _, parked = ask(count, [])
    vote(count, lines[1], 1)
    assert count.look_after(LONGEST_SECS - 1.0) is not None
    assert parked[0].make is None
    count.look_after(2 * LONGEST_SECS)
    assert parked[0].make is not None
    assert count.look_after(3 * LONGEST_SECS) is None
    assert "Push 1 of a has waited for 5 s for the votes of PS tasks [2]" in caplog.text


def test_calls_that_wait_are_bounded(count, sequencer, monkeypatch):
    """A client may ask for pushes of which no part ever comes."""
    monkeypatch.setattr("globalstep.ps.links.vote_count._MOST_ROUNDS", 3)
    lines = {shard: greet(count, sequencer, shard) for shard in (1, 2)}
    vote(count, lines[1], 1, sequence=9)
    asked = [ask(count, [], sequence)[0] for sequence in (1, 2, 3, 4)]
    assert asked == [Asked.PARKED, Asked.PARKED, Asked.PARKED, Asked.UNDECIDED]


@pytest.mark.parametrize("said", ["another shard", "another incarnation", "no key", "itself"])
def test_a_stranger_cannot_vote(count, sequencer, said):
    """As a client that knows none of the incarnation's key, or a task of another incarnation."""
    shard = 0 if said == "itself" else 1
    greeting = {
        "another shard": sequencer.now.signer.greeting(2),
        "another incarnation": sequencer.now.signer.greeting(1),
        "no key": bytes(16),
        "itself": sequencer.now.signer.greeting(0),
    }[said]
    incarnation = 8 if said == "another incarnation" else 7
    line = PlayedLine()
    with pytest.raises(PermissionDeniedError):
        count.hear(pb.VoteRequest(incarnation=incarnation, shard=shard, greeting=greeting), line)
    with pytest.raises(PermissionDeniedError):
        vote(count, line, 1)


def test_a_line_votes_for_its_own_shard_only(count, sequencer):
    first, _ = greet(count, sequencer, 1), greet(count, sequencer, 2)
    with pytest.raises(PermissionDeniedError):
        vote(count, first, 2)


@pytest.mark.long
def test_clients_whose_links_are_cut_all_the_time_make_exactly_their_steps(serving, joined):
    servers = serving(3)
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
