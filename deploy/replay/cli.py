"""`globalstep replay RUN_DIR`: what a run with durability="log" held at any step, bit for bit, from its log.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from globalstep.chief.checkpoints.checkpoint import CheckpointReader, is_complete
from globalstep.chief.checkpoints.checkpoint_format import CheckpointIndex
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state
from globalstep.chief.journal.run_directory import kept_identity
from globalstep.deploy.replay.replaying import LoggedEntry, NotFinite, RunLogs, find_logs
from globalstep.errors import GlobalStepError, NotFoundError
from globalstep.files.shard_file import write_shard
from globalstep.files.storage import storage_for
from globalstep.ps.wal.durability import log_folder

__all__ = ["configure", "run"]

Array = npt.NDArray[Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="the run's directory (its checkpoint_dir)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--to-step", type=int, metavar="N", help="play the log up to this global step (default: its end)"
    )
    where.add_argument("--to-index", type=int, metavar="I", help="or up to this entry of the run's sequence")
    parser.add_argument("--step-name", default="global_step", metavar="NAME", help="which step (default global_step)")
    parser.add_argument("--find-nan", action="store_true", help="name the push that brought the first NaN or infinity")
    parser.add_argument("--shard", type=int, metavar="K", help="only this shard")
    parser.add_argument(
        "--incarnation", type=int, metavar="N", help="which incarnation of the run (default: the newest)"
    )
    parser.add_argument("--log-dir", metavar="DIR", help="where the logs are, if PS tasks were given --log-dir")
    parser.add_argument("--out", metavar="FILE", help="write the values there, as one safetensors file")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Args:
        args: Parsed arguments.

    Returns:
        The exit code: 0; 1 if the log is missing or damaged, or does not lead to what a checkpoint says; 3 if
        `--find-nan` found a push.
    """
    try:
        # Below --log-dir each run has a folder of its own.
        of_run = Path(args.log_dir, kept_identity(args.run_dir).id) if args.log_dir else log_folder(args.run_dir)
        logs = find_logs(of_run, args.incarnation)
        if args.shard is not None and args.shard not in logs.folders:
            raise NotFoundError(f"There is no shard {args.shard}; shards: {sorted(logs.folders)}.")
        shards = sorted(logs.folders) if args.shard is None else [args.shard]
        decisions = {decision.index: decision for decision in logs.decisions()}
        checkpoint = None
        if args.to_step is not None:
            checkpoint = _checkpoint(args, lambda index: index.steps.get(args.step_name) == args.to_step)
        up_to = _target(args, decisions, checkpoint)
        if args.find_nan:
            return _find_nan(logs, shards, up_to, decisions)
        values: dict[str, Array] = {}
        for shard in shards:
            values.update(logs.values(shard, up_to))
        at = up_to if up_to is not None else max(decisions, default=0)
        steps = decisions[at].steps if at in decisions else {}
        reached = "".join(f", {name} {value}" for name, value in sorted(steps.items()))
        print(f"Entry {at}{reached}: {len(values)} Variables of {len(shards)} shard(s), from the log.")
        if args.to_step is None:
            checkpoint = _checkpoint(args, lambda index: index.mutation_index == at)
        elif later := [i for i, entry in decisions.items() if i > at and _is_at(entry, args)]:
            print(
                f"That is where the checkpoint of this step was taken; entries {min(later)} to {max(later)} came after "
                f"it at the same step, and are not in it: --to-index {max(later)} plays them too."
            )
        if args.out:
            path = Path(args.out).absolute()
            write_shard(storage_for(str(path)), str(path.parent), path.name, sorted(values.items()))
            print(f"Written to {args.out}.")
        return _compare(checkpoint, values) if checkpoint is not None else 0
    except (GlobalStepError, OSError) as error:
        print(f"globalstep replay: {error}", file=sys.stderr)
        return 1


def _target(
    args: argparse.Namespace, decisions: Mapping[int, LoggedEntry], checkpoint: tuple[str, CheckpointIndex] | None
) -> int | None:
    """Give the last entry to play; None for all."""
    if args.to_step is None:
        return args.to_index  # type: ignore[no-any-return]
    if checkpoint is not None:
        # What came after it at the same step (reads, assigns) is not in it.
        return checkpoint[1].mutation_index
    reached = [index for index, decision in decisions.items() if _is_at(decision, args)]
    if not reached:
        known = [decision.steps[args.step_name] for decision in decisions.values() if args.step_name in decision.steps]
        span = f"steps {min(known)} to {max(known)}" if known else "no step of that name"
        raise NotFoundError(f"The log does not know {args.step_name} {args.to_step}: it has {span}.")
    return max(reached)


def _is_at(entry: LoggedEntry, args: argparse.Namespace) -> bool:
    return bool(entry.steps.get(args.step_name) == args.to_step)


def _checkpoint(
    args: argparse.Namespace, is_it: Callable[[CheckpointIndex], bool]
) -> tuple[str, CheckpointIndex] | None:
    """Give the newest complete checkpoint of which something is so; None if there is none."""
    state = get_checkpoint_state(args.run_dir)
    for prefix in reversed(state.all_model_checkpoint_paths if state is not None else []):
        if is_complete(prefix):
            with CheckpointReader(prefix) as reader:
                if is_it(reader.index):
                    return prefix, reader.index
    return None


def _compare(checkpoint: tuple[str, CheckpointIndex], values: Mapping[str, Array]) -> int:
    prefix, index = checkpoint
    steps = "".join(f"{name} {value}, " for name, value in sorted(index.steps.items()))
    named = f"{prefix} ({steps}entry {index.mutation_index})"
    with CheckpointReader(prefix) as reader:
        both = sorted(values.keys() & index.variables.keys())
        different = [name for name in both if reader.get_tensor(name).tobytes() != values[name].tobytes()]
    if different:
        print(f"The log does not lead to {named}: {', '.join(different)} differ.", file=sys.stderr)
        return 1
    print(f"{named} holds the same, bit for bit: {len(both)} Variables compared.")
    return 0


def _find_nan(logs: RunLogs, shards: list[int], up_to: int | None, decisions: Mapping[int, LoggedEntry]) -> int:
    found: NotFinite | None = None
    for shard in shards:
        here = logs.find_not_finite(shard, up_to)
        if here is not None and (found is None or here.index < found.index):
            found = here
        elif here is not None and found is not None and here.index == found.index:
            found.values += here.values
    if found is None:
        print("Every value that the log leads to is finite.")
        return 0
    decision = decisions.get(found.index)
    print(f"The first value that is not finite came with entry {found.index}: {', '.join(found.values)}.")
    if decision is None:
        print("The sequencer's log does not go back to it.")
        return 3
    for shard in sorted(logs.folders):
        squares, bad = logs.gradient_squares(shard, (decision.client, decision.sequence))
        found.squares += squares
        found.gradients += bad
    print(f"  worker:        {decision.task or '(no task)'}, client {decision.client}")
    print(f"  its push:      number {decision.sequence}")
    print(f"  steps after:   {', '.join(f'{name} {value}' for name, value in sorted(decision.steps.items()))}")
    print(f"  staleness:     {decision.staleness}")
    print(f"  gradient norm: {found.norm:g}")
    if found.gradients:
        print(f"  not finite:    the gradients of {', '.join(found.gradients)}")
    else:
        print("  all gradients: finite; it was the update that overflowed")
    return 3
