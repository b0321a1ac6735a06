"""The table of push ids: what became of each client's last pushes, so that a retry hears what the first try did.

Bounded: of each client the last WINDOW outcomes; of a client that is gone, once a checkpoint has passed, only the
number that it came to, up to which everything is refused; and of those only so many. Who is only silent may try its
last pushes again, however many are silent with it: of those only the few last outcomes are left. Where even that is
too much, clients that are new are refused. See "What is remembered" in docs/design/push-protocol.md.

Layer: ps. Single thread: the caller's, under the shard's lock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from globalstep.errors import AbortedError, ResourceExhaustedError
from globalstep.ps.members.presence import GONE_SECS
from globalstep.wire.declarations import Outcome, OutcomeKind, PushId

#: A staleness beyond it is taken for it: a record of the journal has four bytes for it.
MAX_STALENESS = 2**31 - 1
#: Outcomes remembered of each client. A client has at most a few pushes under way at a time.
WINDOW = 64
#: Clients remembered that are gone; beyond it those go whose last push is oldest. And clients that are only silent of
#: which WINDOW outcomes are remembered; beyond it FEW are.
LIMIT_CLIENTS = 1024
#: What a silent client may try again: it has no more pushes under way.
FEW = 4
#: Clients remembered in all. One that is new is refused then.
MOST_CLIENTS = 1 << 16
#: How often a full table is looked through for clients that are gone.
_LOOK_SECS = 1.0


@dataclass(slots=True)
class _Client:
    """The remembered outcomes of one client's pushes."""

    outcomes: OrderedDict[int, Outcome] = field(default_factory=OrderedDict)
    #: Numbers up to this one are forgotten: neither retried nor new.
    forgotten: int = 0
    #: It belongs to a life of the run that is over.
    ended: bool = False
    #: It said that it leaves.
    left: bool = False
    #: It was gone already when the last checkpoint was taken.
    going: bool = False
    #: When it was first found not to be here, since its last push.
    silent_since: float | None = None

    def keep(self, most: int) -> None:
        """Forget all but the last outcomes; not that their pushes were decided."""
        while len(self.outcomes) > most:
            oldest, _ = self.outcomes.popitem(last=False)
            self.forgotten = max(self.forgotten, oldest)


class PushTable:
    """Outcomes by push id.

    >>> table = PushTable()
    >>> table.record(PushId("c", 1), Outcome(OutcomeKind.ACCEPTED, index=7))
    >>> table.recorded(PushId("c", 1)).index, table.recorded(PushId("c", 2))
    (7, None)
    """

    def __init__(self) -> None:
        # Those that pushed last come last.
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        # From how many clients on, and when, it is worth while to look for those that are gone.
        self._crowded_at = min(4 * LIMIT_CLIENTS, MOST_CLIENTS)
        self._look_after = -math.inf

    def __len__(self) -> int:
        return len(self._clients)

    def recorded(self, push: PushId) -> Outcome | None:
        """Give the recorded outcome of a push, marked as a duplicate's; None if it is new.

        Raises:
            AbortedError: If the number is older than what is remembered.
        """
        client = self._clients.get(push.client)
        if client is None:
            return None
        outcome = client.outcomes.get(push.sequence)
        if outcome is not None:
            return replace(outcome, duplicate=True)
        if push.sequence <= client.forgotten:
            raise AbortedError(
                f"Push {push.sequence} of client {push.client} is older than the {WINDOW} that are "
                "remembered: whether it was applied is no longer known here. Start the run anew."
            )
        return None

    def record(self, push: PushId, outcome: Outcome) -> None:
        """Remember the outcome of a push."""
        client = self._clients.get(push.client)
        if client is None:
            client = self._clients[push.client] = _Client()
        else:
            self._clients.move_to_end(push.client)
        client.ended = client.left = client.going = False
        client.silent_since = None
        client.outcomes[push.sequence] = outcome
        if len(client.outcomes) > WINDOW:
            client.keep(WINDOW)

    def departed(self, client: str) -> None:
        """Forget the outcomes of a client that left, but not its numbers yet.

        A copy of one of its messages that was held up somewhere must not count as new.
        """
        record = self._clients.get(client)
        if record is not None:
            record.keep(0)
            record.left = True

    def end_of_life(self) -> None:
        """Take note that a new incarnation begins: what clients have under way belongs to the last one."""
        for client in self._clients.values():
            client.ended = True

    @property
    def many(self) -> bool:
        """Whether there are so many clients that they may be `crowded`, or too many for one more."""
        return len(self._clients) >= self._crowded_at

    def crowded(self, now: float) -> bool:
        """Whether there are so many clients that `forget_gone` is due, though no checkpoint is taken.

        Args:
            now: By a monotonic clock.
        """
        return self.many and now >= self._look_after

    def check_capacity(self, client: str) -> None:
        """Refuse a client beyond the limit.

        Raises:
            ResourceExhaustedError: If it is new, and too many are remembered. Nothing is changed.
        """
        if len(self._clients) >= MOST_CLIENTS and client not in self._clients:
            raise ResourceExhaustedError(
                f"The pushes of {len(self._clients)} clients are remembered here, as many as the limit allows, and "
                f"client {client} is new. Those that left are forgotten for it, and those that have been silent for "
                f"{GONE_SECS:.0f} s: try again, and find out what starts so many clients, or makes them die.",
                retry_secs=_LOOK_SECS,
            )

    def forget_gone(self, here: Collection[str], expired: Collection[str], now: float) -> list[str]:
        """Forget the outcomes of pushes of clients that are gone; to be called when a checkpoint is taken.

        Of those that may come back, the number they came to and their last outcomes are always left.

        Args:
            here: Clients with a live lease; of them nothing is forgotten.
            expired: Clients that have been silent for so long that they try nothing again.
            now: By a monotonic clock, the same every time.

        Returns:
            Clients without any remembered push.
        """
        away: list[str] = []
        silent: list[_Client] = []
        for name, client in self._clients.items():
            if name in here:
                client.going, client.silent_since = False, None
                continue
            if client.silent_since is None:
                client.silent_since = now
            gone = client.ended or client.left or name in expired or now - client.silent_since > GONE_SECS
            if gone and client.going:
                client.keep(0)
            client.going = gone
            if gone:
                away.append(name)
            else:
                silent.append(client)
        for client in silent[: max(len(silent) - LIMIT_CLIENTS, 0)]:
            client.keep(FEW)
        over = away[: max(len(away) - LIMIT_CLIENTS, 0)]
        for name in over:
            del self._clients[name]
        # Not for every push: each time that there are a quarter more, or, at the limit, in a while.
        self._crowded_at = min(max(4 * LIMIT_CLIENTS, len(self._clients) * 5 // 4), MOST_CLIENTS)
        self._look_after = now + _LOOK_SECS if len(self._clients) >= MOST_CLIENTS else -math.inf
        return over

    def copied(self) -> Callable[[], dict[str, Any]]:
        """Copy the table, quickly; gives a function that makes of the copy what JSON has, for a checkpoint."""
        # Numbers and outcomes apart: pairs would be as many new objects as there are outcomes.
        copies = [
            (name, client.forgotten, tuple(client.outcomes), tuple(client.outcomes.values()))
            for name, client in self._clients.items()
        ]
        return lambda: {
            name: {
                "forgotten": forgotten,
                "outcomes": [
                    [sequence, int(o.kind), o.index, dict(o.steps), o.staleness]
                    for sequence, o in zip(sequences, outcomes, strict=True)
                ],
            }
            for name, forgotten, sequences, outcomes in copies
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> PushTable:
        """Make a table from what JSON has; see `copied`.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: If it is none.
        """
        table = cls()
        for name, entry in dumped.items():
            outcomes = OrderedDict(
                (_number(s), Outcome(OutcomeKind(kind), _number(index), _steps(steps), int(staleness)))
                for s, kind, index, steps, staleness in entry["outcomes"]
            )
            if any(abs(outcome.staleness) > MAX_STALENESS for outcome in outcomes.values()):
                raise ValueError("a staleness is out of range")
            table._clients[name] = _Client(outcomes, _number(entry["forgotten"]))
        return table


def _number(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{number} is out of range")
    return number


def _steps(steps: Mapping[str, Any]) -> dict[str, int]:
    values = {str(name): int(value) for name, value in steps.items()}
    if any(abs(value) >= 1 << 63 for value in values.values()):
        raise ValueError(f"the steps {values} are out of range")
    return values
