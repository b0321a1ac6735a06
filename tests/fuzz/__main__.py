"""`python tests/fuzz`: give PS tasks and readers inputs that nobody would write, and look what they make of them.

A finding is an answer that is no clear error, a refused request that changed something, an input that takes seconds,
or memory that grows. It ends the run, or is counted with --keep-going. docs/design/testing.md has the story.

Engines: "seeds" makes each input of a seeded generator, fast and reproducible; "atheris" lets libFuzzer mutate the
decisions, guided by which code they reach (needs the extra "fuzz").
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

# The helpers that other tests have too.
sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

if "atheris" in sys.argv:
    import atheris

    # Numba does not compile what is instrumented.
    compiled = ["runtime.kernels", "wire.packing", "wire.sparse_rows", "rules", "worker.protocol.row_merging"]
    left_out = [f"globalstep.{name}" for name in compiled]
    with atheris.instrument_imports(include=["globalstep"], exclude=left_out, enable_loader_override=False):
        from fuzz_bombs import BOMBS, BombTargets
        from fuzz_readers import ReaderTargets
        from fuzz_silence import SilenceTargets
        from fuzz_task import TaskTargets
else:
    from fuzz_bombs import BOMBS, BombTargets
    from fuzz_readers import ReaderTargets
    from fuzz_silence import SilenceTargets
    from fuzz_task import TaskTargets

from fuzz_choices import ByteChoices, Finding

#: An input that computes, or lasts, for longer hangs; a machine with much else to do makes all last.
_MOST_SECS = 10.0
_MOST_REAL_SECS = 60.0
#: What a process may grow by while it is fuzzed, and what it may ask for at all.
_GROWTH_BYTES = 512 << 20
_SPACE_BYTES = 4 << 30
#: Shares of the inputs; what takes long has few.
_SHARES = {"data_plane": 96, "control": 40, "http2": 1, **dict.fromkeys(BOMBS, 1)}
_SHARE = 8


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--secs", type=float, default=math.inf, help="end after so long, even with fewer inputs")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="first seed (default 0)")
    parser.add_argument("--engine", choices=("seeds", "atheris"), default="seeds")
    parser.add_argument("--only", nargs="+", default=[], metavar="TARGET", help="these targets; default all")
    parser.add_argument("--keep-going", action="store_true", help="count findings and go on")
    parser.add_argument(
        "--corpus", nargs=1, default=[], metavar="DIR", help="where atheris keeps inputs that reached something new"
    )
    parser.add_argument("--out", type=Path, help="where to put what was found, JSON")
    return parser.parse_args()


def _resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


@contextlib.contextmanager
def _limited(secs: float) -> Iterator[None]:
    """End what takes too long."""
    signal.setitimer(signal.ITIMER_PROF, secs)
    signal.setitimer(signal.ITIMER_REAL, _MOST_REAL_SECS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _late(number: int, frame: FrameType | None) -> None:
    raise Finding(f"an input takes {_MOST_SECS:g} s of the processor, or {_MOST_REAL_SECS:g} s")


class Campaign:
    """Runs inputs and keeps what they bring to light.

    Args:
        only: Names of targets; none for all.
        keep_going: Count findings instead of raising them.
    """

    def __init__(self, only: list[str], keep_going: bool) -> None:
        self.answers: Counter[tuple[str, str]] = Counter()
        self._tasks, self._readers = TaskTargets(self.answers), ReaderTargets(self.answers)
        self._silence, self._bombs = SilenceTargets(self.answers), BombTargets(self.answers)
        targets: dict[str, Callable[[random.Random], None]] = {
            "data_plane": self._tasks.data_plane,
            "control": self._tasks.control,
            **self._readers.targets,
            **self._silence.targets,
            **self._bombs.targets,
        }
        unknown = set(only) - set(targets)
        if unknown:
            raise SystemExit(f"no targets {sorted(unknown)}; there are {sorted(targets)}")
        self._targets = {name: target for name, target in targets.items() if not only or name in only}
        self._lottery = [name for name in self._targets for _ in range(_SHARES.get(name, _SHARE))]
        self._keep_going = keep_going
        self._baseline = 0
        self.counts: Counter[str] = Counter()
        self.findings: dict[str, tuple[int, str]] = {}
        self.found: Counter[str] = Counter()

    def one(self, rng: random.Random, seed: int) -> None:
        """Run one input."""
        name = rng.choice(self._lottery)
        self.counts[name] += 1
        try:
            with _limited(_MOST_SECS):
                self._targets[name](rng)
            if self.counts.total() % 1000 == 0:
                self._check_memory()
        except Finding as finding:
            key = f"{name}: {str(finding).splitlines()[0]}"
            self.found[key] += 1
            self.findings.setdefault(key, (seed, str(finding)))
            self._tasks.renew()
            if not self._keep_going:
                raise

    def _check_memory(self) -> None:
        resident = _resident_bytes()
        if self._baseline == 0:
            self._baseline = resident
        elif resident > self._baseline + _GROWTH_BYTES:
            grown, self._baseline = resident - self._baseline, resident
            raise Finding(f"memory has grown by {grown >> 20} MiB")

    def report(self, secs: float) -> dict[str, Any]:
        """What came of it."""
        answers: dict[str, dict[str, int]] = {}
        for (call, status), count in sorted(self.answers.items()):
            answers.setdefault(call, {})[status] = count
        return {
            "inputs": self.counts.total(),
            "secs": round(secs, 1),
            "by_target": dict(sorted(self.counts.items())),
            "answers": answers,
            "resident_mib": _resident_bytes() >> 20,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "findings": [{"what": key, "count": n, "seed": self.findings[key][0]} for key, n in self.found.items()],
        }

    def close(self) -> None:
        """Remove what was written."""
        self._tasks.close()
        self._readers.close()
        self._silence.close()
        self._bombs.close()


def main() -> int:
    """Run a campaign."""
    args = _parse()
    logging.disable(logging.CRITICAL)
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _late)
    campaign = Campaign(args.only, args.keep_going)
    if args.engine == "atheris":
        return _with_atheris(args, campaign)
    # Memory that is asked for beyond it is refused, which is a finding. Libraries have mapped theirs by now.
    space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + _SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    began = time.monotonic()
    try:
        for seed in range(args.first, args.first + args.inputs):
            if time.monotonic() - began >= args.secs:
                break
            campaign.one(random.Random(seed), seed)
    except Finding:
        pass
    finally:
        campaign.close()
    return _finish(args, campaign, time.monotonic() - began)


def _finish(args: argparse.Namespace, campaign: Campaign, secs: float) -> int:
    report = campaign.report(secs)
    for key, (seed, text) in campaign.findings.items():
        print(f"==== {key}\n     {campaign.found[key]} times, first with --from {seed}\n{text}\n")
    print(json.dumps(report))
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if campaign.findings else 0


def _with_atheris(args: argparse.Namespace, campaign: Campaign) -> int:
    began = time.monotonic()

    def run(data: bytes) -> None:
        campaign.one(ByteChoices(data), campaign.counts.total())
        if campaign.counts.total() >= args.inputs or time.monotonic() - began >= args.secs:
            # libFuzzer ends the process without a way back.
            campaign.close()
            code = _finish(args, campaign, time.monotonic() - began)
            sys.stdout.flush()
            os._exit(code)

    flags = [f"-seed={args.first + 1}", "-max_len=2048", "-len_control=0", "-rss_limit_mb=4096", "-print_pcs=0"]
    # It takes its own way out.
    flags += ["-runs=-1", f"-artifact_prefix={tempfile.gettempdir()}/", *args.corpus]
    atheris.Setup([sys.argv[0], *flags], run)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
