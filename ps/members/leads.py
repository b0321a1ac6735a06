"""The lead of each worker over the slowest one that lives, for runs whose fast workers wait for the slow.

docs/design/steps-of-several-workers.md, "Bounded staleness", is the specification. Pure: time and leases are arguments.

Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (2013).

Layer: ps. Single thread: the caller's, under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from globalstep.ps.members.presence import LINGER_SECS, UNLEASED_SECS, ClientView, Presence
from globalstep.ps.shard.replies import LeadWait

#: How often leases are looked at, where the slowest does not move on.
LOOK_SECS = 0.25
#: Tasks that a wait names.
_MOST_NAMED = 8
#: Clients that are counted; beyond it those go that are not here, however far ahead they were.
_MOST_CLIENTS = 1 << 16


class Leads:
    """The clocks of workers: each counts its own pushes.

    Args:
        most: By how many pushes a worker may be ahead of the slowest and go on.

    Attributes:
        most: As given.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._clocks: dict[str, int] = {}
        self._pushed_at: dict[str, float] = {}
        # The clock of the slowest, when leases were last looked at. It only rises, and who comes begins with it: so who
        # was told that it may go on still may.
        self._mark = 0
        self._looked_at = float("-inf")
        # Who was too far ahead when its last push was decided.
        self._ahead: set[str] = set()
        # Who was told to wait, and when first.
        self._waits_since: dict[str, float] = {}
        # Who counts, the slowest first.
        self._counting: list[ClientView] = []

    def count(self, client: str, at: float) -> None:
        """Count a worker's push.

        Args:
            client: Whose.
            at: When it was decided, by the clock's monotonic reading.
        """
        before = self._clock(client)
        self._clocks[client], self._pushed_at[client] = before + 1, at
        if before + 1 - self._mark > self.most and self._behind(client):
            self._ahead.add(client)
        else:
            self._ahead.discard(client)
        if before == self._mark:
            self._looked_at = float("-inf")  # the slowest may be another one now

    def ask(self, client: str, presence: Presence, at: float, begun_secs: float) -> LeadWait:
        """Say whether a worker may go on after its last push.

        Args:
            client: Its id.
            presence: Who is here.
            at: Now.
            begun_secs: Since when workers may push.
        """
        if at - self._looked_at >= LOOK_SECS:
            self._look(presence, at, begun_secs)
        lead = self._clock(client) - self._mark
        behind = [] if lead <= self.most else self._behind(client)
        if not behind:
            since = self._waits_since.pop(client, None)
            ended = None if since is None else at - since
            return LeadWait(True, max(self.most - lead, 0), lead, client in self._ahead, (), ended)
        self._waits_since.setdefault(client, at)
        self._ahead.add(client)
        return LeadWait(False, 0, lead, True, list(self._named(behind, client, at)))

    def view(self, at: float) -> dict[str, tuple[int, float]]:
        """Give, by client, how many pushes it was ahead when leases were last looked at, and how long it has waited."""
        return {
            client: (self._clock(client) - self._mark, at - self._waits_since.get(client, at))
            for client in self._clocks
        }

    def _clock(self, client: str) -> int:
        return max(self._clocks.get(client, 0), self._mark)

    def _behind(self, client: str) -> list[ClientView]:
        """Return the workers that a worker is too far ahead of; where nobody keeps a lease, nobody."""
        own = self._clock(client)
        return [view for view in self._counting if own - self._clock(view.client) > self.most]

    def _look(self, presence: Presence, at: float, begun_secs: float) -> None:
        """Find the slowest worker that lives, and forget those that are gone."""
        self._looked_at = at
        here = self._here(presence, at)
        # A worker that has not pushed yet has read values; one that never will is not waited for long.
        self._counting = [
            view
            for view in here
            if view.client in self._clocks
            or (view.standing.takes_task and min(view.joined_secs, begun_secs) < LINGER_SECS)
        ]
        self._counting.sort(key=lambda view: self._clock(view.client))
        if not self._counting:
            return
        self._mark = self._clock(self._counting[0].client)
        if len(self._clocks) > 2 * len(here) + 16:
            present = {view.client for view in here}
            many = len(self._clocks) > _MOST_CLIENTS
            gone = [
                name for name, clock in self._clocks.items() if (many or clock <= self._mark) and name not in present
            ]
            for client in gone:
                del self._clocks[client], self._pushed_at[client]  # if it comes back, it begins with the mark
                self._waits_since.pop(client, None)
                self._ahead.discard(client)

    def _here(self, presence: Presence, at: float) -> list[ClientView]:
        """Return the clients that may push: those whose lease lasts, and for a while those without a known lease."""
        clients = presence.clients()
        for client, pushed_at in self._pushed_at.items():
            if at - pushed_at < UNLEASED_SECS and not presence.has_been_here(client):
                clients.append(ClientView(client, "", at - pushed_at, 0))
        return clients

    def _named(self, behind: Sequence[ClientView], client: str, at: float) -> Iterator[str]:
        """Name those that a worker is too far ahead of, each with why it is waited for."""
        own = self._clock(client)
        for view in behind[:_MOST_NAMED]:
            name, pushed_at = view.task or f"client {view.client}", self._pushed_at.get(view.client)
            if pushed_at is None:
                yield f"{name}, which came {view.joined_secs:.0f} s ago and has not pushed yet"
            else:
                yield (
                    f"{name}, which is behind by {own - self._clock(view.client)}, pushed {at - pushed_at:.0f} s "
                    f"ago, and was heard of {view.silent_secs:.0f} s ago"
                )
        if len(behind) > _MOST_NAMED:
            yield f"{len(behind) - _MOST_NAMED} more"
