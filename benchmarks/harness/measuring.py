"""How a case is measured: all peers' processes are alive at once and take turns, round after round.

So whatever else the machine does meets all of them alike. Processes that would take the processor while it is not
their turn are stopped meanwhile. Rates are those of a turn; a ratio is taken within a
round. Every peer's step, and globalstep's values to the last bit, are checked at the end of a case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.contestants import Peer, Team
from benchmarks.harness.workload import Case
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

__all__ = ["Record", "Settings", "measure", "measure_alternately"]

Record = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How long and how often.

    Attributes:
        rounds: How often every peer has its turn in a case.
        secs: Least length of a turn.
        profile: Whether the stages of globalstep's steps are told apart.
        least_steps: How many steps a turn has at least, of every worker.
    """

    rounds: int
    secs: float
    profile: bool = False
    least_steps: int = 2


class _Table:
    """The peers at one case."""

    def __init__(self, case: Case, peers: Sequence[Peer], teams: Mapping[str, Team], settings: Settings) -> None:
        self.case = case
        self.settings = settings
        self.peers = [peer for peer in peers if peer.takes(case) and peer.program in teams]
        # One PS is all that the baseline has.
        self.peers = [
            peer for peer in self.peers if len(teams[peer.program].servers) >= case.ps or peer.program == "ray"
        ]
        self.teams = {peer.program: teams[peer.program] for peer in self.peers}
        self._form: dict[str, str] = {}
        self._steps: dict[str, int] = defaultdict(int)
        # (program, form, worker) -> steps, for what each has pushed to the hot row.
        self._each: dict[tuple[str, str, int], int] = defaultdict(int)

    def start(self) -> None:
        """Make the Variables and let everybody join and warm up."""
        command = {"do": "create", "case": self.case.as_dict(), "form": "auto"}
        for team in self.teams.values():
            team.ask(1, command)
        for peer in self.peers:
            self._join(peer)
            self._run(peer, self.settings.secs / 4, self.settings.least_steps)

    def _join(self, peer: Peer) -> None:
        if self._form.get(peer.program) != peer.form:
            profile = self.settings.profile
            command = {"do": "join", "case": self.case.as_dict(), "form": peer.form, "profile": profile}
            self.teams[peer.program].ask(self.case.workers, command)
            self._form[peer.program] = peer.form

    def _run(self, peer: Peer, secs: float, least_steps: int) -> Record:
        team, case = self.teams[peer.program], self.case
        answers = team.ask(case.workers, {"do": "run", "secs": secs, "least_steps": least_steps})
        steps = sum(answer["steps"] for answer in answers)
        self._steps[peer.program] += steps
        for worker, answer in enumerate(answers):
            self._each[peer.program, peer.form, worker] += answer["steps"]
        stages: dict[str, float] = defaultdict(float)
        for answer in answers:
            for stage, spent in answer["stages"].items():
                stages[stage] += spent / steps * 1e6
        return {
            "steps": steps,
            "rate": sum(answer["steps"] / answer["secs"] for answer in answers),
            "step_us": sum(answer["secs"] for answer in answers) / steps * 1e6,
            "worker_cpu_us": sum(answer["cpu_secs"] for answer in answers) / steps * 1e6,
            "stages_us": stages,
        }

    def turn(self, peer: Peer, number: int) -> Record:
        """Let a peer step; gives what was measured."""
        self._join(peer)
        team = self.teams[peer.program]
        cpu, applied = team.server_cpu_secs(), _applied(team, self.case)
        record = self._run(peer, self.settings.secs, self.settings.least_steps)
        record["ps_cpu_us"] = (team.server_cpu_secs() - cpu) / record["steps"] * 1e6
        record["apply_us"] = (_applied(team, self.case) - applied) / record["steps"] * 1e6
        return {"case": self.case.as_dict(), "peer": peer.key, "round": number, **record}

    def finish(self) -> Iterator[Record]:
        """Check what the PS hold, and leave."""
        for key, team in self.teams.items():
            exact = team.program.exact
            hot = 0
            if exact and self.case.kind == "embedding":
                for (program, _, worker), steps in self._each.items():
                    if program == key:
                        command = {"do": "pushed", "steps": steps}
                        hot += team.workers[worker].ask(command)["hot"]
            check = {"do": "check", "steps": self._steps[key], "exact": exact, "hot": hot}
            (found,) = team.ask(1, check)
            yield {"case": self.case.as_dict(), "program": key, "steps": self._steps[key], **found}
        for team in self.teams.values():
            team.ask(self.case.workers, {"do": "leave"})


def _applied(team: Team, case: Case) -> float:
    """Seconds that globalstep's PS have spent on applying, by their own clocks; 0 for others."""
    if team.program.key != "globalstep":
        return 0.0
    client = ClusterClient(transports_to("grpc://" + ",".join(team.addresses[: case.ps]), "grpc"), member=False)
    found = sum(status.statistics.apply_secs for status in client.refresh())
    client.close()
    return found


def _turns(tables: Sequence[_Table], settings: Settings) -> Iterator[Record]:
    for number in range(settings.rounds):
        for table in tables:
            # Back and forth: nobody always follows the same neighbour.
            for peer in table.peers if number % 2 == 0 else reversed(table.peers):
                yield table.turn(peer, number)


def measure(case: Case, peers: Sequence[Peer], teams: Mapping[str, Team], settings: Settings) -> Iterator[Record]:
    """Measure a case.

    Args:
        case: Which.
        peers: Who is asked to take part.
        teams: Program -> its processes.
        settings: How long and how often.

    Yields:
        One record for every turn, then one for every program's check.
    """
    table = _Table(case, peers, teams, settings)
    table.start()
    yield from _turns([table], settings)
    yield from table.finish()


def measure_alternately(
    cases: Sequence[Case], peers: Sequence[Peer], teams: Mapping[str, Team], settings: Settings
) -> Iterator[Record]:
    """Measure cases that are to be compared with each other: each round has all of them, made anew.

    Args:
        cases: Which.
        peers: See measure.
        teams: See measure.
        settings: See measure.

    Yields:
        As measure does.
    """
    for number in range(settings.rounds):
        for case in cases if number % 2 == 0 else reversed(cases):
            table = _Table(case, peers, teams, settings)
            table.start()
            for peer in table.peers:
                yield table.turn(peer, number)
            yield from table.finish()
