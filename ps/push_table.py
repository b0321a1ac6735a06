"""The table of push ids: what became of each client's last pushes, so that a retry hears what the first try did.

Bounded: of each client the last WINDOW outcomes; of a client that is gone, once a checkpoint has passed, only the
number that it came to, up to which everything is refused; and of clients that are not here only so many. See "What is
remembered" in docs/design/push-protocol.md.

Floor: ps. Single thread: the caller's, under the shard's lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from globalstep.declarations import Outcome, OutcomeKind, PushId
from globalstep.errors import AbortedError
from globalstep.journal_records import MAX_STALENESS

__all__ = ["LIMIT_CLIENTS", "WINDOW", "PushTable"]

#: Outcomes remembered of each client. A client has at most a few pushes under way at a time.
WINDOW = 64
#: Clients remembered that are not here; beyond it those go that have been quiet longest.
LIMIT_CLIENTS = 1024


@dataclass(slots=True)
class _Client:
    """What is remembered of one client's pushes."""

    outcomes: OrderedDict[int, Outcome] = field(default_factory=OrderedDict[int, Outcome])
    #: Numbers up to this one are forgotten: neither retried nor new.
    forgotten: int = 0
    #: It belongs to a life of the run that is over.
    ended: bool = False
    #: It was gone already when the last checkpoint was taken.
    going: bool = False


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
        """Remember what became of a push."""
        client = self._clients.get(push.client)
        if client is None:
            client = self._clients[push.client] = _Client()
        else:
            self._clients.move_to_end(push.client)
        client.ended = client.going = False
        client.outcomes[push.sequence] = outcome
        while len(client.outcomes) > WINDOW:
            oldest, _ = client.outcomes.popitem(last=False)
            client.forgotten = max(client.forgotten, oldest)

    def departed(self, client: str) -> None:
        """Forget the outcomes of a client that left, but not its numbers yet.

        A copy of one of its messages that was held up somewhere must not count as new.
        """
        record = self._clients.get(client)
        if record is not None and record.outcomes:
            record.forgotten = max(record.forgotten, *record.outcomes)
            record.outcomes.clear()

    def end_of_life(self) -> None:
        """Take note that a new incarnation begins: what clients have under way belongs to the last one."""
        for client in self._clients.values():
            client.ended = True

    def forget_gone(self, here: Collection[str], expired: Collection[str]) -> list[str]:
        """Forget what became of pushes of clients that are gone; to be called when a checkpoint is taken.

        Args:
            here: Clients with a live lease; of them nothing is forgotten.
            expired: Clients that have been silent for so long that they try nothing again.

        Returns:
            Clients of which nothing at all is remembered any more.
        """
        for name, client in self._clients.items():
            gone = name not in here and (client.ended or name in expired)
            if gone and client.going:
                self.departed(name)
            client.going = gone
        quiet = [name for name in self._clients if name not in here]
        over = quiet[: max(len(quiet) - LIMIT_CLIENTS, 0)]
        for name in over:
            del self._clients[name]
        return over

    def dump(self) -> dict[str, Any]:
        """Give the table as JSON has it, for a checkpoint."""
        return {
            name: {
                "forgotten": client.forgotten,
                "outcomes": [
                    [sequence, int(o.kind), o.index, dict(o.steps), o.staleness]
                    for sequence, o in client.outcomes.items()
                ],
            }
            for name, client in self._clients.items()
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> PushTable:
        """Make a table from what `dump` gave.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: If it is none.
        """
        table = cls()
        for name, kept in dumped.items():
            outcomes = OrderedDict(
                (_number(s), Outcome(OutcomeKind(kind), _number(index), _steps(steps), int(staleness)))
                for s, kind, index, steps, staleness in kept["outcomes"]
            )
            if any(abs(outcome.staleness) > MAX_STALENESS for outcome in outcomes.values()):
                raise ValueError("a staleness is out of range")
            table._clients[name] = _Client(outcomes, _number(kept["forgotten"]))
        return table


def _number(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{number} is out of range")
    return number


def _steps(steps: Mapping[str, Any]) -> dict[str, int]:
    found = {str(name): int(value) for name, value in steps.items()}
    if any(abs(value) >= 1 << 63 for value in found.values()):
        raise ValueError(f"the steps {found} are out of range")
    return found
