"""Bugs to plant, one at a time, and see whether the simulation finds them: each breaks one promise of the protocol."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any
from unittest import mock

from globalstep.errors import AbortedError, NotFoundError
from globalstep.ps.aggregates.contributions import Contributions
from globalstep.ps.aggregates.step_waits import StepWaits
from globalstep.ps.ledger.aggregates import Aggregates
from globalstep.ps.ledger.ledger import EntryKind, Ledger
from globalstep.ps.ledger.push_table import PushTable
from globalstep.ps.ledger.signatures import Signer
from globalstep.ps.members.leads import Leads
from globalstep.ps.members.presence import State
from globalstep.ps.service import settler
from globalstep.ps.service.control import Control
from globalstep.ps.shard.applying import Applier
from globalstep.ps.shard.events import Pull, Resolved
from globalstep.ps.shard.incarnation import Incarnation
from globalstep.ps.shard.reads import StateReader
from globalstep.ps.store.row_layouts import RowLayout
from globalstep.ps.wal import durability, write_ahead_log
from globalstep.ps.wal.log_file import _RECORD, LogFiles, LoggedRecord, SegmentReader
from globalstep.ps.wal.write_ahead_log import WriteAheadLog
from globalstep.wire.declarations import OutcomeKind, Push, padded
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

    def impatient(self: Any, push: Any, *known: Any) -> Any:
        result = push_once(self, push, *known)
        if result.outcome.duplicate and result.outcome.kind is OutcomeKind.ACCEPTED and push.increments:
            return push_once(self, push)
        return result

    return PushProtocol, "push", impatient


def _values_of_two_places() -> Patch:
    push_once = PushProtocol.push

    def torn(self: Any, push: Any, *known: Any) -> Any:
        result = push_once(self, push, *known)
        if result.values:
            result.values[:] = [self.pull(Push(reads=[read]))[0] for read in push.reads]
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
    return Signer, "is_entry", lambda self, shard, entry: True


def _floors_believed() -> Patch:
    return Signer, "is_floor", lambda self, shard, floor: True


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


def _rows_that_repeat_where_those_told_did_not() -> Patch:
    bind = RowLayout.bind

    def hasty(self: Any, rows: Any, data: Any) -> Any:
        ops, reads = bind(self, rows, data)
        return [replace(op, unique=True) for op in ops], reads

    return RowLayout, "bind", hasty


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
    contributed = Applier._contributed

    def hasty(self: Any, now: Any, entry: Any, place: Any, parts: Any, plan: Any) -> Any:
        if now.ledger is None and entry.kind is EntryKind.LAST_CONTRIBUTION and place.contributions > 1:
            entry = replace(entry, kind=EntryKind.CLOSING)  # without its own part
        return contributed(self, now, entry, place, parts, plan)

    return Applier, "_contributed", hasty


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


def _a_ledger_of_after_the_snapshot() -> Patch:
    def lazy(self: Any) -> Callable[[], bytes]:
        return lru_cache(maxsize=None)(lambda: json.dumps(self.copied()(), sort_keys=True).encode())

    return Ledger, "dumped_later", lazy


def _read_before_it_is_applied() -> Patch:
    apply = Applier.apply_entry

    def hasty(self: Any, now: Any, entry: Any, *more: Any) -> None:
        staged = now.staged.get(entry.push)
        reads = staged.parts.reads if staged is not None else ()
        early = [value.copy() for value in now.store.read(reads)]
        apply(self, now, entry, *more)
        kept = now.replies.get(entry.push)
        if kept is not None and early and kept.values:
            kept.values[:], kept.packing = early, None

    return Applier, "apply_entry", hasty


def _dropped_without_asking() -> Patch:
    def hasty(self: Any) -> bool:
        view = self._shard.view(brief=True)
        overdue = self._shard.overdue(settler.OVERDUE_SECS, settler.LONGEST_SECS)
        if view.shard == view.sequencer:
            return settle_once(self)
        self._shard.handle(Resolved(view.incarnation, overdue, ()))
        return settle_once(self)

    settle_once = settler.Settler.settle_once
    return settler.Settler, "settle_once", hasty


def _one_shard_speaks_for_all() -> Patch:
    raise_floor = Ledger.raise_floor

    def generous(self: Any, shard: int, applied: int) -> bool:
        for item in self._unfinished:
            if item.index <= applied:
                item.waiting = {shard}
        return raise_floor(self, shard, applied)

    return Ledger, "raise_floor", generous


def _entries_forgotten_once_told() -> Patch:
    pending = Ledger.pending

    def forgetful(self: Any, shard: int, up_to: int) -> Any:
        found = pending(self, shard, up_to)
        self._pending[shard].clear()
        return found

    return Ledger, "pending", forgetful


def _values_of_now_under_the_pushes_place() -> Patch:
    answer = Applier.answer

    def careless(self: Any, now: Any, push: Any, *buffer: Any) -> Any:
        found, kept = answer(self, now, push, *buffer), now.replies.get(push)
        return replace(found, as_of=kept.index) if kept is not None and found.as_of else found

    return Applier, "answer", careless


def _a_gap_is_passed_over() -> Patch:
    check = Applier._check_entry

    def careless(self: Any, now: Any, entry: Any, applied: int) -> None:
        check(self, now, entry, max(applied, entry.previous))

    return Applier, "_check_entry", careless


def _cuts_that_do_not_fit() -> Patch:
    def trusting(self: Any, shards: Any, replies: Any) -> bool:
        return True

    return PushProtocol, "_are_consistent", trusting


def _newest_first() -> Patch:
    apply = Applier.apply_entries

    def reversed_(self: Any, now: Any, brought_by: Any, entries: Sequence[Any], *more: Any) -> None:
        before, turned = now.applied, []
        new = [entry for entry in entries if entry.index > before]
        for slot, entry in zip(new, reversed(new), strict=True):
            if any(item.kind is not EntryKind.PUSH for item in new):
                turned.append(slot)
            else:
                turned.append(replace(slot, push=entry.push, hypers=entry.hypers))
        with mock.patch.object(Signer, "is_entry", return_value=True):
            apply(self, now, brought_by, turned, *more)

    return Applier, "apply_entries", reversed_


def _only_the_newest_entries_are_told() -> Patch:
    pending = Ledger.pending
    return Ledger, "pending", lambda self, shard, up_to: pending(self, shard, up_to)[-1:]


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
    "a forged entry is believed": _entries_believed,
    "a forged floor is believed": _floors_believed,
    "PUSH without STAGE stops the run": _waits_for_a_part,
    "a log without a lock": _a_log_without_a_lock,
    "unreadable counts as lost": _unreadable_counts_as_lost,
    "damage taken for a torn end": _damage_taken_for_a_torn_end,
    "numbered by clocks alone": _numbered_by_clocks_alone,
    "rows that repeat where those told did not": _rows_that_repeat_where_those_told_did_not,
    "a ledger of after the snapshot": _a_ledger_of_after_the_snapshot,
    "read before it is applied": _read_before_it_is_applied,
    "dropped without asking the sequencer": _dropped_without_asking,
    "one shard speaks for all": _one_shard_speaks_for_all,
    "entries forgotten once they were told": _entries_forgotten_once_told,
    "values of now under the push's place": _values_of_now_under_the_pushes_place,
    "a gap between entries is passed over": _a_gap_is_passed_over,
    "cuts that do not fit are believed": _cuts_that_do_not_fit,
    "entries are applied newest first": _newest_first,
    "only the newest entries are told": _only_the_newest_entries_are_told,
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
