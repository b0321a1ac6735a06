"""How much a shard keeps for its clients besides values: parts that are staged, answers, snapshots. All has a limit.

Layer: ps. Threads: functions, called under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from globalstep.errors import ResourceExhaustedError
from globalstep.ps.service.in_flight import RETRY_SECS
from globalstep.ps.shard.answers import Kept, Staged
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.store.snapshots import Snapshots
from globalstep.wire.declarations import PushId

__all__ = ["check_snapshots", "check_staging", "held_bytes", "trim_kept"]

#: Parts of one client that wait for a decision. A client has a few pushes under way.
_MOST_PARTS = 64
#: Clients whose last answer is kept.
_MOST_KEPT = 1024
#: Snapshots that are not released: a chief has one, and one more where it saves in the background.
_MOST_SNAPSHOTS = 4


#: What a change, or a read, of a part takes besides its data.
_CHANGE_BYTES = 512


def held_bytes(parts: PushParts) -> int:
    """Give how much memory a part of a push takes. Where it has a layout, its changes are the layout's."""
    nbytes = parts.data.nbytes if parts.data is not None else 0
    return nbytes if parts.layout is not None else nbytes + _CHANGE_BYTES * (len(parts.ops) + len(parts.reads))


def check_staging(staged: Mapping[PushId, Staged], push: PushId, nbytes: int, most_bytes: int) -> None:
    """Refuse a part for which there is no room now.

    Args:
        staged: What waits already.
        push: Whose part it is.
        nbytes: What it takes.
        most_bytes: What parts may have in all; a single one may have more.

    Raises:
        ResourceExhaustedError: If there is none, until others have been decided on.
    """
    own = sum(other.client == push.client for other in staged)
    held = sum(held_bytes(item.parts) for item in staged.values())
    if own >= _MOST_PARTS or (held and held + nbytes > most_bytes):
        raise ResourceExhaustedError(
            f"Parts of {len(staged)} pushes ({own} of client {push.client}) wait here to be decided on, with {held:,} "
            f"bytes; there is no room for {nbytes:,} more: the limit is {most_bytes:,} (--max-inflight-bytes).",
            retry_secs=RETRY_SECS,
        )


def check_snapshots(snapshots: Snapshots, here: Collection[str]) -> None:
    """Refuse a snapshot where there are too many.

    Args:
        snapshots: Those that are not released.
        here: Clients that are there; those of others are about to be freed.

    Raises:
        ResourceExhaustedError: If there are.
    """
    if snapshots.count_of(here) >= _MOST_SNAPSHOTS:
        raise ResourceExhaustedError(
            f"{_MOST_SNAPSHOTS} snapshots are here that nobody has released; each is a copy of all values."
        )


def trim_kept(kept: dict[str, Kept], most_bytes: int) -> None:
    """Let go of the oldest answers where there are too many; whoever asks for one again is given the values of then.

    Args:
        kept: Client -> its last answer, the oldest first.
        most_bytes: What values may have in all.
    """
    while len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]
    sizes = {client: sum(value.nbytes for value in one.values) for client, one in kept.items() if one.values}
    held = sum(sizes.values())
    # The newest is about to be given out.
    for client, nbytes in list(sizes.items())[:-1]:
        if held <= most_bytes:
            return
        kept[client].values = None
        held -= nbytes
