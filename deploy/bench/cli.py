"""`globalstep bench`: measures what a step's parts cost on this machine, for `globalstep plan`.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from globalstep.deploy.bench.cost_measuring import measure
from globalstep.deploy.bench.cost_profile import Profile, default_path
from globalstep.errors import GlobalStepError

__all__ = ["configure", "describe_machine", "draw_profile", "run"]

_STEP_TITLE = "a step of one message each way, us: of one worker, and of several at the same time"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the profile goes, as JSON (default: globalstep/profile.json in the user's cache folder)",
    )
    parser.add_argument("--quick", action="store_true", help="in 10 seconds instead of 40, and less surely")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Args:
        args: Parsed arguments.

    Returns:
        The exit code: 0, or 1 if it could not be measured or written.
    """
    console = Console(stderr=True)
    path: Path = args.out or default_path()
    try:
        with console.status("measuring") as status:
            profile = measure(describe_machine(), args.quick, lambda doing: status.update(f"measuring: {doing}"))
        profile.save(path)
    except (GlobalStepError, RuntimeError, OSError) as error:
        print(f"globalstep bench: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(profile.as_json(), indent=1))
    else:
        Console(soft_wrap=True).print(draw_profile(profile))
        print(f"\nwritten to {path}; `globalstep plan` takes it from there" + (" with --profile" if args.out else ""))
    return 0


def describe_machine() -> dict[str, Any]:
    """Say what a reader of a profile needs to know of where it was made."""
    cpu = platform.processor()
    try:
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    except OSError:
        cpu = cpu or platform.machine()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        **{name: version(name) for name in ("globalstep", "grpcio", "numpy", "numba")},
    }


def draw_profile(profile: Profile) -> Group:
    """Draw a profile as tables.

    Args:
        profile: Which.
    """
    machine: Mapping[str, Any] = profile.machine
    head = Text(
        f"{machine.get('cpu', '')}, {profile.cores} cores; {machine.get('date', '')}, load {machine.get('load', 0)} "
        "when it began\n"
        f"copying: {profile.copy_bytes_sec / 1e9:.1f} GB/s on one core, "
        f"{profile.all_cores_copy_bytes_sec / 1e9:.1f} on all (reads and writes counted)"
    )
    messages = Table(box=None, title=_STEP_TITLE, title_justify="left", header_style="bold")
    for name in ("TRANSPORT", "BYTES EACH WAY", "WORKER CPU", "PS CPU", "DELAY"):
        messages.add_column(name, justify="left" if name == "TRANSPORT" else "right")
    crowd = next(iter(profile.transports.values())).crowd
    messages.add_column(f"OF {crowd}: WORKER CPU", justify="right")
    messages.add_column("PS CPU", justify="right")
    for name, costs in profile.transports.items():
        for alone, crowded in zip(costs.alone, costs.crowded, strict=True):
            delay = _micros(alone.delay_secs) if alone.delay_measured else "not measurable"
            secs = map(_micros, (alone.worker_secs, alone.ps_secs, crowded.worker_secs, crowded.ps_secs))
            worker, ps, *of_crowd = secs
            messages.add_row(name, _bytes(alone.nbytes), worker, ps, delay, *of_crowd)
    together = Table(box=None, title="a push over several PS, us of CPU", title_justify="left", header_style="bold")
    for name in ("TRANSPORT", "ADMIT: WORKER", "SEQUENCER", "EACH OTHER PART: WORKER", "PS"):
        together.add_column(name, justify="left" if name == "TRANSPORT" else "right")
    for name, costs in profile.transports.items():
        numbers = (costs.admit_worker_secs, costs.admit_ps_secs, costs.part_worker_secs, costs.part_ps_secs)
        together.add_row(name, *map(_micros, numbers))
    rules = Table(box=None, title="update rules, ns a parameter", title_justify="left", header_style="bold")
    sizes = [f"{count:,.0f}" for count, _ in next(iter(profile.kernels.values())).dense]
    for name in ("RULE", *(f"DENSE: {size}" for size in sizes), "ROWS", "ROWS: OF ALL"):
        rules.add_column(name, justify="left" if name == "RULE" else "right")
    for name, kernel in profile.kernels.items():
        dense = [secs / count for count, secs in kernel.dense]
        rows = (kernel.row_element_secs, kernel.table_element_secs)
        rules.add_row(name, *(f"{1e9 * secs:.2f}" if secs else "" for secs in (*dense, *rows)))
    tail = Text(
        f"reading rows: {1e9 * profile.gather_element_secs:.2f} ns an element; to bfloat16 or back: "
        f"{1e9 * profile.pack_element_secs:.2f} ns a number"
    )
    if not all(cost.delay_measured for costs in profile.transports.values() for cost in costs.alone):
        tail.append(
            "\n\nNot measurable: steps took longer than their messages ever do, or less than their parts; the machine "
            "did other work.\nRun `globalstep bench` again when it is quiet. Until then a plan counts on the bound "
            "that was passed."
        )
    return Group(head, Text(), messages, Text(), together, Text(), rules, Text(), tail)


def _micros(secs: float) -> str:
    return f"{1e6 * secs:,.0f}"


def _bytes(count: float) -> str:
    return "some" if not count else f"{count:,.0f}"
