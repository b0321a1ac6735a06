"""Invariants of a shard's state, which hold after every event; a log that leads to anything else is refused.

The simulation and the tests of the PS look after every event too.

Layer: ps. Threads: called under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Iterator

from globalstep.ps.ledger.ledger import Ledger
from globalstep.ps.shard.incarnation import Incarnation
from globalstep.wire.declarations import State


def problems(now: Incarnation) -> list[str]:
    """Say what does not hold of an incarnation; nothing where all is well."""
    texts = list(_life(now))
    if now.ledger is not None:
        texts += _ledger(now, now.ledger)
    for client, kept in now.replies.by_client.items():
        if kept.push.client != client or not 0 <= kept.index <= now.applied:
            texts.append(f"the reply to {client} is of {kept.push}, entry {kept.index} of {now.applied}")
    return texts


def _life(now: Incarnation) -> Iterator[str]:
    """Check the invariants of every shard."""
    held = now.store.variable_count or now.staged or now.replies.by_client or now.ledger is not None
    if (now.state is State.VACANT or now.number == 0) and held:
        yield f"it is {now.state.name}, incarnation {now.number}, and holds something"
    if not 0 <= now.shard < now.shards or not 0 <= now.sequencer < now.shards:
        yield f"it is shard {now.shard} of {now.shards} with sequencer {now.sequencer}"
    if now.number and (now.ledger is not None) != (now.shard == now.sequencer):
        yield f"shard {now.shard} has {'a' if now.ledger else 'no'} ledger, and {now.sequencer} is the sequencer"
    if now.ledger is None and now.raised:
        yield f"low-water marks {now.raised} were reported to a shard that is not the sequencer"


def _ledger(now: Incarnation, ledger: Ledger) -> Iterator[str]:
    """Check the invariants of the sequencer."""
    if now.staged:
        yield f"the sequencer holds parts {sorted(map(str, now.staged))}, which it gets with their decision"
    if now.applied != ledger.index:
        yield f"the sequencer has admitted {ledger.index} entries and applied {now.applied}"
    if ledger.steps.keys() != ledger.visible.keys():
        yield f"steps are {sorted(ledger.steps)}, visible ones {sorted(ledger.visible)}"
    uninitialized = set(now.store.uninitialized())
    for name, value in ledger.steps.items():
        if name not in uninitialized and now.store.declaration(name) is not None:
            stored = int(now.store.step(name)[0])
            if stored != value:
                yield f"step {name!r} is {value} in the ledger and {stored} in the store"
    floors, last_of, pending, unfinished = ledger.under_way()
    if not unfinished and ledger.visible != ledger.steps:
        yield f"every entry is applied everywhere, steps are {ledger.steps} and visible ones {ledger.visible}"
    for shard, (floor, last, entries) in enumerate(zip(floors, last_of, pending, strict=True)):
        if not (floor <= ledger.index and last <= ledger.index):
            yield f"shard {shard} has applied entry {floor}, its last is {last}, of {ledger.index}"
        indices = [entry.index for entry in entries]
        if indices != sorted(set(indices)) or (indices and (indices[0] <= floor or indices[-1] != last)):
            yield f"entries {indices} are pending of shard {shard}, which has applied {floor}; its last is {last}"
        for before, entry in zip(indices, list(entries)[1:], strict=False):
            if entry.previous != before:
                yield f"entry {entry.index} of shard {shard} follows {entry.previous}, and {before} is before it"
    waiting = [item.index for item in unfinished]
    if waiting != sorted(set(waiting)) or (unfinished and not unfinished[0].waiting):
        yield f"entries {waiting} are unfinished, the first of which waits for no shard"
    of_shard = [{entry.index for entry in entries} for entries in pending]
    for item in unfinished:
        if any(item.index not in of_shard[shard] for shard in item.waiting):
            yield f"entry {item.index} waits for shards {sorted(item.waiting)}, and is not pending there"
