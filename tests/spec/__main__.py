"""Goes through all states of a small world, or shows the shortest way to a planted bug: `python tests/spec --help`."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from pathlib import Path

_FOLDERS = ((2, "spec"), (1, "simulation"), (1, "support"))
sys.path[:0] = [str(Path(__file__).resolve().parents[at] / name) for at, name in _FOLDERS]

from planted_bugs import planted  # noqa: E402
from search import Found, search  # noqa: E402
from worlds import SHOWN_IN, WORLDS  # noqa: E402


def main() -> int:
    """Search what the command line asks for; 1 if something was wrong, or not all was tried."""
    parser = argparse.ArgumentParser(prog="python tests/spec", description=__doc__)
    parser.add_argument("worlds", nargs="*", metavar="world", help=f"of {', '.join(WORLDS)}; the first by default")
    parser.add_argument("--bug", choices=sorted(SHOWN_IN), help="plant this bug, and search the world that shows it")
    parser.add_argument("--secs", type=float, default=1800.0, help="after which a search ends all the same")
    given = parser.parse_args()
    names = [SHOWN_IN[given.bug]] if given.bug else given.worlds or list(WORLDS)[:1]
    failed = False
    for name in names:
        began, used = time.monotonic(), time.process_time()
        with planted(given.bug) if given.bug else nullcontext():
            found = search(WORLDS[name], given.secs, traced=bool(given.bug))
        took, used = time.monotonic() - began, time.process_time() - used
        print(f"{name}: {_told(found)}; {took:.0f} s, of the processor {used:.0f} s", flush=True)
        for number, line in enumerate(found.trace, 1):
            print(f"  {number}. {line}")
        if found.wrong:
            print(f"  {found.wrong}")
        failed |= bool(found.wrong) or not found.whole
    return int(failed)


def _told(found: Found) -> str:
    what = "something is wrong" if found.wrong else "all of them" if found.whole else "not all of them"
    return f"{found.states:,} states, {found.steps:,} steps, {found.task_states:,} of a task; {what}"


if __name__ == "__main__":
    sys.exit(main())
