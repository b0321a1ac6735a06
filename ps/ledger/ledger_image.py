"""The whole of a ledger as bytes, for the write-ahead log: what a checkpoint's ledger leaves out as well.

A checkpoint's begins a new incarnation, in which nothing is under way. This one goes on in its own: entries that
other shards may not have applied, their floors, and the limits are in it too.

Layer: ps. Single thread: the caller's.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from globalstep.errors import DataLossError, InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger import entries
from globalstep.ps.ledger.aggregates import Aggregates
from globalstep.ps.ledger.ledger import Ledger, Unfinished


def ledger_image(ledger: Ledger) -> Callable[[], bytes]:
    """Copy a ledger as it stands, quickly; gives a function that encodes the copy."""
    floors, last_of_shard, pending, unfinished = ledger.under_way()
    book, waiting = ledger.copied(), [tuple(of_shard) for of_shard in pending]
    state: dict[str, Any] = {
        "parent": ledger.parent,
        "stopped": ledger.stopped,
        "visible": dict(ledger.visible),
        "limits": dict(ledger.limits),
        "floors": list(floors),
        "last_of_shard": list(last_of_shard),
        "aggregates": ledger.aggregates.image(),
        "unfinished": [[item.index, sorted(item.waiting), dict(item.steps)] for item in unfinished],
    }

    def encode() -> bytes:
        state["book"] = book()
        state["pending"] = [
            [base64.b64encode(entries.encode(entry).SerializeToString()).decode() for entry in of_shard]
            for of_shard in waiting
        ]
        return json.dumps(state, sort_keys=True).encode()

    return encode


def ledger_of_image(image: bytes, shards: int, sequencer: int) -> Ledger:
    """Make the ledger that an image was taken of.

    Raises:
        DataLossError: If it is none.
    """
    try:
        state = json.loads(image)
        ledger = Ledger.load(json.dumps(state["book"]).encode(), shards, sequencer)
        ledger.parent = int(state["parent"])
        ledger.stopped = bool(state["stopped"])
        ledger.visible = {name: int(value) for name, value in state["visible"].items()}
        ledger.limits = {name: int(value) for name, value in state["limits"].items()}
        ledger.aggregates = Aggregates.of_image(state["aggregates"])
        ledger.resume(
            [int(floor) for floor in state["floors"]],
            [int(last) for last in state["last_of_shard"]],
            [
                deque(entries.decode(pb.Entry.FromString(base64.b64decode(entry))) for entry in of_shard)
                for of_shard in state["pending"]
            ],
            deque(Unfinished(index, set(waiting), steps) for index, waiting, steps in state["unfinished"]),
        )
        return ledger
    except (
        KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, DecodeError,
        InvalidArgumentError,
    ) as error:  # fmt: skip
        raise DataLossError(f"A record of the log holds no ledger: {error!r}.") from None
