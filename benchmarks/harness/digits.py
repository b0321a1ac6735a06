"""The digits job as a benchmark: seconds until 97% of the test images are classified well, and with all starts.

Each round starts the processes of one peer after another anew: a PS and two workers, so that the start of the
processes, which counts for small jobs, is measured too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness.contestants import PROGRAMS, Peer, start
from benchmarks.harness.measuring import Record
from benchmarks.harness.processes import Children
from benchmarks.harness.workload import Case
from benchmarks.programs import digits_job

__all__ = ["measure"]

_WORKERS = 2


def measure(
    peers: Sequence[Peer], rounds: int, repeats: int, python: str, folder: Path, children: Children
) -> Iterator[Record]:
    """Let every peer train, round after round.

    Args:
        peers: Who is asked to take part; no two of one program.
        rounds: How often the processes are started.
        repeats: How often each set of processes trains; only the first time tells of the start.
        python: Of the peers' environment.
        folder: For the data.
        children: Who starts processes.

    Yields:
        One record for each training.
    """
    data = folder / "digits.npz"
    digits_job.save(data)
    case = Case("digits", workers=_WORKERS, data=str(data))
    for number in range(rounds):
        for peer in (peer for peer in peers if peer.takes(case)):
            program = next(program for program in PROGRAMS if program.key == peer.program)
            began = time.monotonic()
            team = start(program, 1, _WORKERS, python, children, folder / "peers.log")
            team.ready()
            for repeat in range(repeats):
                digits_job.sign(str(data)).unlink(missing_ok=True)
                team.workers[0].ask({"do": "create", "case": case.as_dict(), "form": peer.form})
                team.ask(_WORKERS, {"do": "join", "case": case.as_dict(), "form": peer.form, "profile": False})
                for worker, child in enumerate(team.workers):
                    child.tell({"do": "train", "worker": worker})
                answers = [child.answer() for child in team.workers]
                total = time.monotonic() - began
                team.ask(_WORKERS, {"do": "leave"})
                yield {
                    "job": "digits", "peer": peer.key, "round": number * repeats + repeat,
                    "secs": answers[0]["secs"], "steps": sum(answer["steps"] for answer in answers),
                    "reached": answers[0]["reached"], **({"total_secs": total} if repeat == 0 else {}),
                }  # fmt: skip
            team.end()
