"""Bugs to plant, one at a time, and see whether the simulation finds them: each breaks one promise of the protocol."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any
from unittest import mock

from globalstep.errors import AbortedError, GlobalStepError, NotFoundError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.aggregates.contributions import Contributions
from globalstep.ps.aggregates.step_waits import StepWaits
from globalstep.ps.ledger import entries
from globalstep.ps.ledger.aggregates import Aggregates
from globalstep.ps.ledger.ledger import EntryKind, Ledger
from globalstep.ps.ledger.push_table import PushTable
from globalstep.ps.links import vote_count
from globalstep.ps.links.vote_count import VoteCount
from globalstep.ps.links.voter import Voter
from globalstep.ps.members.leads import Leads
from globalstep.ps.members.presence import State
from globalstep.ps.service.control import Control
from globalstep.ps.shard.applying import Applier
from globalstep.ps.shard.events import Pull, Recorded, Resolved
from globalstep.ps.shard.incarnation import Incarnation
from globalstep.ps.shard.reads import StateReader
from globalstep.ps.shard.replies import Answer
from globalstep.ps.shard.sequencer import Sequencer
from globalstep.ps.store.row_layouts import RowLayout
from globalstep.ps.wal import durability, write_ahead_log
from globalstep.ps.wal.log_file import _RECORD, LogFiles, LoggedRecord, SegmentReader
from globalstep.ps.wal.write_ahead_log import WriteAheadLog
from globalstep.wire import codec
from globalstep.wire.declarations import OutcomeKind, padded
from globalstep.worker.client import membership
from globalstep.worker.protocol.push_protocol import PushProtocol

__all__ = ["PLANTED", "planted"]

#: Whose (a class's, a module's), the name, what is put there.
Patch = tuple[Any, str, Any]


def _id_after_the_apply() -> Patch:
    record = PushTable.record

    def late(self: Any, push: Any, outcome: Any) -> None:
        before, self.held_back = getattr(self, "held_back", None), (push, outcome)
        if before is not None:
            record(self, *before)

    return PushTable, "record", late


def _ids_lost_in_a_restore() -> Patch:
    def forgetful(cls: Any, dumped: Any) -> Any:
        return cls()

    return PushTable, "load", classmethod(forgetful)


def _only_its_own_entry() -> Patch:
    apply = Applier.apply_entries

    def hasty(self: Any, now: Any, brought_by: Any, entries: Sequence[Any], *more: Any) -> None:
        own = [replace(entry, previous=0) for entry in entries if entry.push == brought_by]
        apply(self, now, brought_by, own or entries, *more)

    return Applier, "apply_entries", hasty


def _snapshot_of_its_time() -> Patch:
    snapshot = StateReader.snapshot

    def live(self: Any, now: Any, event: Any) -> Any:
        _, ledger = snapshot(self, now, event)
        return now.store.snapshot(), ledger

    return StateReader, "snapshot", live


def _visible_at_admission() -> Patch:
    admit = Ledger.admit

    def eager(self: Any, *args: Any) -> Any:
        outcome = admit(self, *args)
        self.visible = dict(self.steps)
        return outcome

    return Ledger, "admit", eager


def _settled_without_a_fence() -> Patch:
    def lenient(self: Any, pushes: Any, shard: int, applied: int) -> Any:
        self.raise_floor(shard, applied)
        return self.pending(shard, self.index)

    return Ledger, "settle", lenient


def _one_beyond_the_limit() -> Patch:
    def generous(self: Any, increments: Any) -> bool:
        return any(item.by > 0 and self.steps[item.step] > self.limits.get(item.step, 1 << 62) for item in increments)

    return Ledger, "over_limit", generous


def _any_incarnation() -> Patch:
    def blind(self: Any, incarnation: int, client: str, even_behind: bool = False) -> None:
        if self.state is State.VACANT:
            raise AbortedError("This PS task holds no state.")

    return Incarnation, "check", blind


def _a_retry_under_a_new_id() -> Patch:
    push_once = PushProtocol.push

    def impatient(self: Any, push: Any) -> Any:
        result = push_once(self, push)
        if result.outcome.duplicate and result.outcome.kind is OutcomeKind.ACCEPTED and push.increments:
            return push_once(self, push)
        return result

    return PushProtocol, "push", impatient


def _values_of_two_places() -> Patch:
    push_once = PushProtocol.push

    def torn(self: Any, push: Any) -> Any:
        result = push_once(self, push)
        if result.values:
            result.values[:] = [self.pull([read])[0] for read in push.reads]
        return result

    return PushProtocol, "push", torn


def _reply_before_fsync() -> Patch:
    def early(self: Any, batch: Sequence[Any]) -> None:
        # Those of the batch before are brought to the disk along with it: none is missing when the process goes on.
        self._writer.sync()
        for queued in batch:
            if queued.begins:
                self._writer.sync()
                self._writer.close()
                self._segment += 1
                self._writer = write_ahead_log.SegmentWriter(self.directory, self._segment, queued.number, self._files)
            self._writer.write(queued.number, batch[0].number - 1, *queued.encode())

    return WriteAheadLog, "_write", early


def _torn_record_accepted() -> Patch:
    def trusting(self: Any, at: int) -> Any:
        if at + _RECORD.size > self._size:
            return None
        _, number, on_disk, head_bytes, data_bytes, _, _ = _RECORD.unpack(os.pread(self._file, _RECORD.size, at))
        middle = padded(head_bytes)
        size = _RECORD.size + middle + data_bytes
        if number != self._next or at + size > self._size:
            return None
        body = os.pread(self._file, size - _RECORD.size, at + _RECORD.size)
        return LoggedRecord(number, body[:head_bytes], memoryview(body)[middle:]), size, on_disk

    return SegmentReader, "_record_at", trusting


def _adopted_without_a_sync() -> Patch:
    records = SegmentReader.records

    def trusting(self: Any) -> Iterator[LoggedRecord]:
        for record in records(self):
            # What can be read counts as being on the disk.
            self.on_disk = record.number
            yield record

    return SegmentReader, "records", trusting


def _recovered_without_floors() -> Patch:
    call = Control.call

    def careless(self: Any, method: str, request: Any) -> Any:
        if method == "Recover":
            # The sequencer is not told what the others have applied.
            del request.floors[:]
        return call(self, method, request)

    return Control, "call", careless


def _entries_believed() -> Patch:
    return Applier, "_check_signed", lambda self, now, entry: None


def _floors_believed() -> Patch:
    return Sequencer, "_check_floor", lambda self, now, shard, floor: floor.index


def _forgotten_once_applied() -> Patch:
    check = Sequencer._check_floor

    def forgetful(self: Any, now: Any, shard: int, floor: Any) -> int:
        check(self, now, shard, floor)
        return int(floor.index)

    return Sequencer, "_check_floor", forgetful


def _served_while_behind() -> Patch:
    check = Incarnation.check

    def careless(now: Incarnation, number: int, client: str, even_behind: bool = False) -> None:
        check(now, number, client, even_behind=True)

    return Incarnation, "check", careless


def _recovered_as_if_none_were_behind() -> Patch:
    call = Control.call

    def careless(self: Any, method: str, request: Any) -> Any:
        if method == "Recover":
            del request.behind[:]
        return call(self, method, request)

    return Control, "call", careless


def _on_disk_once_applied() -> Patch:
    return WriteAheadLog, "durable", property(lambda self: self._applied[-1][1] if self._applied else self._durable)


def _waits_for_a_part() -> Patch:
    def trusting(self: Any, now: Any, entry: Any) -> bool:
        if entry.push not in now.staged:
            raise AbortedError(f"There is no part of {entry.push} here.")
        return True

    return Applier, "_can_apply", trusting


def _a_log_without_a_lock() -> Patch:
    def unlocked(self: Any, path: Any) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    return LogFiles, "lock", unlocked


def _unreadable_counts_as_lost() -> Patch:
    return durability, "_cannot_now", lambda error, what: NotFoundError(f"{what}: {error}")


def _damage_taken_for_a_torn_end() -> Patch:
    def generous(self: Any) -> None:
        self.cut_bytes = self._size - self.end

    return SegmentReader, "_judge_damage", generous


def _numbered_by_clocks_alone() -> Patch:
    return membership, "_newest_known", lambda ledger, progress: 0


def _decided_at_a_vote_less() -> Patch:
    def hasty(self: Any) -> bool:
        return self.call is not None and len(self.needed - self.voted) <= 1

    return vote_count._Round, "is_complete", hasty


def _a_vote_for_a_part_that_was_refused() -> Patch:
    def kind(self: Any, link: Any, push: Any, not_finite: str = "") -> None:
        self._send(link, pb.Vote(push=codec.encode_push_id(push)))

    return Voter, "object", kind


def _a_vote_is_looked_for_twice() -> Patch:
    take = VoteCount._take

    def hasty(self: Any, held: Any, shard: int, push: Any, not_finite: str) -> None:
        is_there = push in self._rounds
        self._shard.handle(Recorded(push))
        if not is_there and self._asked.get(push.client, 0) >= push.sequence:
            held.leave(push)
            return
        take(self, held, shard, push, not_finite)

    return VoteCount, "_take", hasty


def _rows_that_repeat_where_those_told_did_not() -> Patch:
    bind = RowLayout.bind

    def hasty(self: Any, rows: Any, data: Any) -> Any:
        ops, reads = bind(self, rows, data)
        return [replace(op, unique=True) for op in ops], reads

    return RowLayout, "bind", hasty


def _a_sequencers_error_counts_as_a_fence() -> Patch:
    refuse = VoteCount.refuse

    def careless(self: Any, *args: Any) -> bool:
        with contextlib.suppress(GlobalStepError):
            refuse(self, *args)
        return False

    return VoteCount, "refuse", careless


def _answered_before_it_is_applied() -> Patch:
    def early(self: Any, incarnation: int, message: Any, answered: Any) -> None:
        for item in message.entries:
            call = self._take(codec.decode_push_id(item.push))
            if call is not None:
                now = self._shard.now
                staged = now.staged.get(codec.decode_push_id(item.push))
                reads = staged.parts.reads if staged is not None else ()
                answer = Answer(reads, now.store.read(reads), None, item.index, item.index)
                answered.append((call, self._answer(answer)))
            self._shard.handle(Resolved(incarnation, (), [entries.decode(item)]))

    return Voter, "_carry_out", early


def _a_contribution_counts_twice() -> Patch:
    admit = Ledger.admit

    def forgetful(self: Any, push: Any, kind: Any, *args: Any) -> Any:
        outcome = admit(self, push, kind, *args)
        if kind is EntryKind.CONTRIBUTION:
            # A retry finds neither the outcome, nor that its client has given one.
            del self.table._clients[push.client].outcomes[push.sequence]
            for item in self.aggregates._open.values():
                item.given = {f"{client} {push.sequence}": count for client, count in item.given.items()}
        return outcome

    return Ledger, "admit", forgetful


def _a_late_contribution_counts() -> Patch:
    is_late = Aggregates.is_late

    def lenient(self: Any, wanted: Any, client: str, base: int, present: int) -> bool:
        return wanted.closes and is_late(self, wanted, client, base, present)

    return Aggregates, "is_late", lenient


def _shards_with_different_sets() -> Patch:
    contribute = Applier._apply_contribution

    def hasty(self: Any, now: Any, entry: Any, place: Any, parts: Any, uses: Any) -> None:
        if now.ledger is None and entry.kind is EntryKind.LAST_CONTRIBUTION and place.contributions > 1:
            entry = replace(entry, kind=EntryKind.CLOSING)  # without its own part
        contribute(self, now, entry, place, parts, uses)

    return Applier, "_apply_contribution", hasty


def _units_summed_as_they_arrive() -> Patch:
    add = Contributions.add

    def hasty(self: Any, step: str, ops: Any, first: bool, unit: int = 0) -> None:
        add(self, step, ops, first)

    return Contributions, "add", hasty


def _a_unit_counts_twice() -> Patch:
    is_late = Aggregates.is_late

    def lenient(self: Any, wanted: Any, client: str, base: int, present: int) -> bool:
        return is_late(self, replace(wanted, unit=0, most_of_client=100), client, base, present)

    return Aggregates, "is_late", lenient


def _the_dead_are_waited_for() -> Patch:
    here = Leads._here

    def mourning(self: Any, presence: Any, at: float) -> Any:
        known = {view.client: view for view in (*getattr(self, "known", ()), *here(self, presence, at))}
        self.known = list(known.values())
        return self.known

    return Leads, "_here", mourning


def _a_free_push_too_many() -> Patch:
    ask = Leads.ask

    def generous(self: Any, *args: Any) -> Any:
        wait = ask(self, *args)
        return replace(wait, free_pushes=wait.free_pushes + 1)

    return Leads, "ask", generous


def _who_comes_back_is_where_it_was() -> Patch:
    look = Leads._look

    def nostalgic(self: Any, *args: Any) -> None:
        self._mark = 0  # the others are held until it has caught up
        look(self, *args)

    return Leads, "_look", nostalgic


def _values_of_before_the_step() -> Patch:
    await_made = StepWaits.await_made

    def hasty(self: Any, increments: Any, parts: Any, reply: Any, tensors: Any, call: Any) -> None:
        push, early = call.request.push, copy(self)
        found = self._shard.handle(Pull(push.incarnation, push.id.client, parts.reads))
        early._shard = _Shard(self._shard, found)
        await_made(early, increments, replace(parts, layout=None), reply, tensors, call)

    return StepWaits, "await_made", hasty


class _Shard:
    """A shard that answers what has been read before."""

    def __init__(self, shard: Any, found: Any) -> None:
        self._shard, self._found = shard, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def handle(self, event: Any) -> Any:
        return self._found if isinstance(event, Pull) else self._shard.handle(event)


#: Name -> what makes the patch.
PLANTED: dict[str, Callable[[], Patch]] = {
    "id remembered after the apply": _id_after_the_apply,
    "ids lost in a restore": _ids_lost_in_a_restore,
    "commit applies only its own entry": _only_its_own_entry,
    "snapshot of its time, not of its place": _snapshot_of_its_time,
    "step visible at admission": _visible_at_admission,
    "settled without a fence": _settled_without_a_fence,
    "limit off by one": _one_beyond_the_limit,
    "incarnation not checked": _any_incarnation,
    "retry under a new id": _a_retry_under_a_new_id,
    "values of several places": _values_of_two_places,
    "reply before fsync": _reply_before_fsync,
    "torn record accepted": _torn_record_accepted,
    "adopted without a sync": _adopted_without_a_sync,
    "recovered without floors": _recovered_without_floors,
    "forgotten once it is applied": _forgotten_once_applied,
    "served while it is behind": _served_while_behind,
    "recovered as if none were behind": _recovered_as_if_none_were_behind,
    "on the disk once it is applied": _on_disk_once_applied,
    "a forged entry is believed": _entries_believed,
    "a forged floor is believed": _floors_believed,
    "ADMIT without STAGE stops the run": _waits_for_a_part,
    "a log without a lock": _a_log_without_a_lock,
    "unreadable counts as lost": _unreadable_counts_as_lost,
    "damage taken for a torn end": _damage_taken_for_a_torn_end,
    "numbered by clocks alone": _numbered_by_clocks_alone,
    "decided at a vote less": _decided_at_a_vote_less,
    "a vote for a part that was refused": _a_vote_for_a_part_that_was_refused,
    "a vote is looked for twice": _a_vote_is_looked_for_twice,
    "rows that repeat where those told did not": _rows_that_repeat_where_those_told_did_not,
    "a sequencer's error counts as a fence": _a_sequencers_error_counts_as_a_fence,
    "answered before it is applied": _answered_before_it_is_applied,
    "a contribution counts twice after a retry": _a_contribution_counts_twice,
    "a late contribution counts": _a_late_contribution_counts,
    "shards with different sets of contributions": _shards_with_different_sets,
    "units of work summed as they arrive": _units_summed_as_they_arrive,
    "a unit of work counts twice": _a_unit_counts_twice,
    "values of before the step": _values_of_before_the_step,
    "the dead are waited for": _the_dead_are_waited_for,
    "a free push too many": _a_free_push_too_many,
    "who comes back is where it was": _who_comes_back_is_where_it_was,
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Have a bug in the code."""
    owner, attribute, bug = PLANTED[name]()
    with mock.patch.object(owner, attribute, bug):
        yield
