"""`globalstep plan`: how many PS tasks a job needs, what will hold it up, how stale its pushes will be, how fast it is.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from globalstep.deploy.bench.cost_profile import Profile, default_path, load
from globalstep.deploy.plan.job import OPTIMIZERS, Job
from globalstep.deploy.plan.modes import ModeChoices, forecast_modes
from globalstep.deploy.plan.sizing import JobPlan, make_plan, pace_of
from globalstep.deploy.plan.view import draw_plan, plot_plan
from globalstep.errors import GlobalStepError

__all__ = ["configure", "job_of", "run"]

_ITEMSIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
#: Each 32 have a byte together; values, and rows, are as with bfloat16.
_INT8_ITEMSIZE = 33 / 32


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    job = parser.add_argument_group("the job")
    job.add_argument("--params", type=_count, required=True, metavar="N", help="parameters, e.g. 1e9")
    job.add_argument("--workers", type=_count, required=True, metavar="N", help="workers, e.g. 200")
    job.add_argument(
        "--step-time", type=float, required=True, metavar="SECS",
        help="how long a worker computes a step, without any PS",
    )  # fmt: skip
    job.add_argument(
        "--step-time-spread", type=float, default=0.1, metavar="PART",
        help="standard deviation of that, as a part of it (default 0.1)",
    )  # fmt: skip
    job.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam", help="default adam")
    job.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="on the PS (default float32)")
    job.add_argument(
        "--sparse-rows", type=_rows, default=(0, 0), metavar="ROWSxWIDTH",
        help="all parameters are a table, of which a step reads and pushes so many different rows, e.g. 2000x64",
    )  # fmt: skip
    job.add_argument(
        "--wire", choices=("int8", "bfloat16", "float16", "float32"), default="",
        help="numbers on the wire, as of gs.WireOptions (default: as on the PS)",
    )  # fmt: skip
    job.add_argument("--batch", type=_count, default=0, metavar="N", help="examples of a worker's step, for examples/s")
    machines = parser.add_argument_group("the machines")
    machines.add_argument("--nic", type=float, default=10.0, metavar="GBIT/S", help="network of each (default 10)")
    machines.add_argument(
        "--round-trip", type=float, default=1e-4, metavar="SECS", help="of the network (default 0.0001)"
    )
    machines.add_argument("--ps", type=_ps, default=0, metavar="N", help="PS tasks, or auto (the default)")
    machines.add_argument(
        "--ps-cores", type=_count, default=0, metavar="N", help="cores of each PS task (default: as of the profile)"
    )
    machines.add_argument(
        "--transport", choices=("grpc", "tcp", "unix", "shm"), default="",
        help="default tcp, as between machines without a firewall, and shm with --shared-cores",
    )  # fmt: skip
    machines.add_argument(
        "--shared-cores", type=float, default=0.0, metavar="N",
        help="all processes are on one machine, and compete for so many cores; there is no network",
    )  # fmt: skip
    machines.add_argument(
        "--accelerator", action="store_true", help="with --shared-cores: computing takes none of these cores"
    )
    modes = parser.add_argument_group("modes", "any of these adds a table of what is to be expected of each mode")
    modes.add_argument("--modes", action="store_true", help="with the defaults of the others")
    modes.add_argument("--slow-workers", type=_count, metavar="N", help="so many of the workers are slow (default 0)")
    modes.add_argument("--slow-factor", type=float, metavar="F", help="they take F times as long (default 2)")
    modes.add_argument(
        "--replicas", type=_count, metavar="K",
        help="contributions that make a synchronous step (default: all workers, and all but the slow ones)",
    )  # fmt: skip
    modes.add_argument("--max-staleness", type=int, metavar="S", help='of staleness="wait" (default 4)')
    modes.add_argument("--local-steps", type=_count, metavar="H", help="of a round of local steps (default 50)")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="what `globalstep bench` has measured (default: where it writes)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, e.g. as PNG; needs globalstep[bench]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (default 0)")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Args:
        args: Parsed arguments.

    Returns:
        The exit code: 0, or 1 if something that was asked for cannot be.
    """
    console = Console(stderr=True)
    try:
        profile = load(args.profile or default_path())
        job = job_of(args, profile.cores)
        with console.status("simulating") as status:
            plan = make_plan(
                job, profile, args.ps, args.seed, lambda tried: status.update(f"simulating: {tried.ps} PS are done")
            )
        plan = _with_modes(plan, profile, args)
        if args.plot:
            plot_plan(plan, args.plot)
    except (GlobalStepError, OSError, ValueError) as error:
        print(f"globalstep plan: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(plan.as_json(), indent=2))
    else:
        Console(soft_wrap=True).print(draw_plan(plan, args.batch), highlight=False)
    return 0


def job_of(args: argparse.Namespace, cores: int) -> Job:
    """Give the job that the arguments describe.

    Args:
        args: Parsed arguments.
        cores: Of a PS task where they do not say.

    Raises:
        InvalidArgumentError: If there can be no such job.
    """
    rows, width = args.sparse_rows
    alone = args.shared_cores > 0
    wire = "bfloat16" if args.wire == "int8" else args.wire or args.dtype
    return Job(
        params=args.params,
        workers=args.workers,
        step_secs=args.step_time,
        step_spread=args.step_time_spread,
        nic_gbps=float("inf") if alone else args.nic,
        round_trip_secs=0.0 if alone else args.round_trip,
        optimizer=args.optimizer,
        itemsize=_ITEMSIZES[args.dtype],
        wire_itemsize=_INT8_ITEMSIZE if args.wire == "int8" and not rows else _ITEMSIZES[wire],
        value_itemsize=_ITEMSIZES[wire],
        rows=rows,
        row_width=width,
        ps_cores=args.ps_cores or cores,
        transport=args.transport or ("shm" if alone else "tcp"),
        shared_cores=args.shared_cores,
        compute_takes_core=not args.accelerator,
    )


def _with_modes(plan: JobPlan, profile: Profile, args: argparse.Namespace) -> JobPlan:
    """Add what is to be expected of each mode, where it was asked for."""
    named = {"replicas": args.replicas, "max_staleness": args.max_staleness, "every": args.local_steps}
    given = {name: value for name, value in named.items() if value is not None}
    if not (args.modes or given or args.slow_workers or args.slow_factor is not None):
        return plan
    factor = 2.0 if args.slow_factor is None else args.slow_factor
    pace = pace_of(plan, profile, args.slow_workers or 0, factor)
    return replace(plan, modes=forecast_modes(pace, ModeChoices(**given)))


def _count(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value >= 1 or not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1, such as 200 or 1e9")
    return int(value)


def _ps(text: str) -> int:
    return 0 if text == "auto" else _count(text)


def _rows(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([\d.e+]+)x(\d+)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form ROWSxWIDTH, e.g. 2000x64")
    return _count(found[1]), _count(found[2])
