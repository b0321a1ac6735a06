"""`globalstep replay RUN_DIR`: what a run with durability="log" held at any step, bit for bit, from its log."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.chief.checkpoints.checkpoint import CheckpointReader, is_complete
from globalstep.chief.checkpoints.checkpoint_format import CheckpointIndex
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state
from globalstep.chief.journal.run_directory import kept_identity
from globalstep.errors import DataLossError, GlobalStepError, NotFoundError
from globalstep.files.shard_file import write_shard
from globalstep.files.storage import storage_for
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.wal.durability import ABANDONED, log_folder
from globalstep.ps.wal.log_file import SegmentReader, readers, segment_path, segments_in
from globalstep.ps.wal.recovery import Replay, bases_in
from globalstep.runtime.clock import SYSTEM_CLOCK

Array = npt.NDArray[Any]
_STEP = "global_step"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="the run's directory (its checkpoint_dir)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--to-step", type=int, metavar="N", help="play the log up to this step (default: its end)")
    what.add_argument("--to-index", type=int, metavar="I", help="or up to this entry of the run's sequence")
    what.add_argument("--find-nan", action="store_true", help="name the push that brought the first NaN or infinity")
    parser.add_argument(
        "--incarnation", type=int, metavar="N", help="which incarnation of the run (default: the newest)"
    )
    parser.add_argument("--log-dir", metavar="DIR", help="where the logs are, if PS tasks were given --log-dir")
    parser.add_argument("--out", metavar="FILE", help="write the values there, as one safetensors file")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        The exit code: 0; 1 if the log is missing or damaged, or does not lead to what a checkpoint says; 3 if
        `--find-nan` found a push.
    """
    try:
        # Below --log-dir each run has a folder of its own.
        of_run = Path(args.log_dir, kept_identity(args.run_dir).id) if args.log_dir else log_folder(args.run_dir)
        logs = find_logs(of_run, args.incarnation)
        decisions = logs.decisions()
        if args.find_nan:
            return _find_nan(logs, decisions)
        checkpoint = None
        if args.to_step is not None:
            checkpoint = _checkpoint(args.run_dir, lambda index: index.steps.get(_STEP) == args.to_step)
        up_to = args.to_index
        if checkpoint is not None:
            # What came after it at the same step (reads, assigns) is not in it.
            up_to = checkpoint[1].mutation_index
        elif args.to_step is not None:
            steps_at = {index: decision.outcome.steps.get(_STEP) for index, decision in decisions.items()}
            reached_at = [index for index, step in steps_at.items() if step == args.to_step]
            if not reached_at:
                known = [step for step in steps_at.values() if step is not None]
                span = f"steps {min(known)} to {max(known)}" if known else "no step of that name"
                raise NotFoundError(f"The log never reaches {_STEP} {args.to_step}: it has {span}.")
            up_to = max(reached_at)
        values: dict[str, Array] = {}
        for shard in sorted(logs.folders):
            values.update(logs.values(shard, up_to))
        at = up_to if up_to is not None else max(decisions, default=0)
        steps = _steps(decisions[at].outcome.steps if at in decisions else {})
        reached = f", {steps}" if steps else ""
        print(f"Entry {at}{reached}: {len(values)} Variables of {len(logs.folders)} shard(s), from the log.")
        if args.to_step is None:
            checkpoint = _checkpoint(args.run_dir, lambda index: index.mutation_index == at)
        if args.out:
            path = Path(args.out).absolute()
            write_shard(storage_for(str(path)), str(path.parent), path.name, sorted(values.items()))
            print(f"Written to {args.out}.")
        return _compare(checkpoint, values) if checkpoint is not None else 0
    except (GlobalStepError, OSError) as error:
        print(f"globalstep replay: {error}", file=sys.stderr)
        return 1


def _checkpoint(run_dir: str, is_it: Callable[[CheckpointIndex], bool]) -> tuple[str, CheckpointIndex] | None:
    """Give the newest complete checkpoint that fulfils a condition; None if there is none."""
    state = get_checkpoint_state(run_dir)
    for prefix in reversed(state.all_model_checkpoint_paths if state is not None else []):
        if is_complete(prefix):
            with CheckpointReader(prefix) as reader:
                if is_it(reader.index):
                    return prefix, reader.index
    return None


def _compare(checkpoint: tuple[str, CheckpointIndex], values: Mapping[str, Array]) -> int:
    prefix, index = checkpoint
    named = f"{prefix} ({', '.join(filter(None, [_steps(index.steps), f'entry {index.mutation_index}']))})"
    with CheckpointReader(prefix) as reader:
        both = sorted(values.keys() & index.variables.keys())
        different = [name for name in both if reader.get_tensor(name).tobytes() != values[name].tobytes()]
    if different:
        print(f"The log does not lead to {named}: {', '.join(different)} differ.", file=sys.stderr)
        return 1
    print(f"{named} holds the same, bit for bit: {len(both)} Variables compared.")
    return 0


def _find_nan(logs: RunLogs, decisions: Mapping[int, pb.LogRecord]) -> int:
    """Print which push brought the first value that is not finite."""
    found = [first for shard in logs.folders if (first := logs.first_not_finite(shard)) is not None]
    if not found:
        print("Every value that the log leads to is finite.")
        return 0
    index = min(at for at, _ in found)
    names = sorted(name for at, bad in found for name in bad if at == index)
    print(f"The first value that is not finite came with entry {index}: {', '.join(names)}.")
    decision = decisions.get(index)
    if decision is None:
        print("The sequencer's log does not go back to it.")
        return 3
    push, outcome = decision.push.id, decision.outcome
    print(f"  worker:        {decision.task or '(no task)'}, client {push.client}")
    print(f"  its push:      number {push.sequence}")
    print(f"  steps after:   {_steps(outcome.steps)}")
    print(f"  staleness:     {outcome.staleness}")
    return 3


def _steps(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def _not_finite(values: Mapping[str, Array]) -> list[str]:
    return [name for name, value in values.items() if not np.isfinite(value).all()]


@dataclass(frozen=True, slots=True)
class RunLogs:
    """The logs of one incarnation.

    Attributes:
        folders: Shard -> its log.
        sequencer: Which shard decided.
    """

    folders: Mapping[int, Path]
    sequencer: int

    def decisions(self) -> dict[int, pb.LogRecord]:
        """Give the sequencer's record of each accepted entry, as far back as its log goes; without parts."""
        found: dict[int, pb.LogRecord] = {}
        folder = self.folders[self.sequencer]
        for reader in readers(folder, segments_in(folder)):
            for logged in reader.records():
                record = pb.LogRecord.FromString(logged.head)
                if record.HasField("push") and record.outcome.kind == pb.OUTCOME_ACCEPTED:
                    record.ClearField("part")
                    found[record.outcome.index] = record
        return found

    def values(self, shard: int, up_to: int | None) -> dict[str, Array]:
        """Give what a shard held after an entry; None for the last.

        Raises:
            NotFoundError: If the log does not go back so far.
            DataLossError: If it is damaged.
        """

        def before(record: pb.LogRecord) -> bool:
            indices = _entries_of(record)
            if up_to is None or not indices or indices[-1] <= up_to:
                return True
            if record.HasField("commit"):
                del record.commit.entries[sum(index <= up_to for index in indices) :]
                return bool(record.commit.entries)
            return False

        replay = Replay(self.folders[shard], SYSTEM_CLOCK, before, start=self._start(shard, up_to))
        replay.run()
        return replay.values()

    def _start(self, shard: int, up_to: int | None) -> int:
        """Give the newest segment from which an entry can be reached."""
        folder = self.folders[shard]
        oldest = None
        for segment in reversed(bases_in(folder)):
            oldest = int(_first_record(folder, segment).base.applied)  # the last entry before the segment
            if up_to is None or oldest <= up_to:
                return segment
        if oldest is None:
            raise DataLossError(f"The log in {folder} has neither its beginning nor the values of a checkpoint.")
        raise NotFoundError(
            f"The log of shard {shard} begins after entry {oldest}, so it does not tell what was at entry {up_to}. A "
            "run with RunPolicy(keep_log=True) keeps it from its first step."
        )

    def first_not_finite(self, shard: int) -> tuple[int, list[str]] | None:
        """Find the first entry of a shard after which values were not finite, and the Variables; None for none.

        Raises:
            DataLossError: If the log is damaged.
        """
        played: list[int] = []

        def before(record: pb.LogRecord) -> bool:
            if played and _not_finite(replay.values()):
                return False
            played[:] = _entries_of(record)
            return True

        replay = Replay(self.folders[shard], SYSTEM_CLOCK, before, start=bases_in(self.folders[shard])[0])
        replay.run()
        # Entries that came together are looked at one by one.
        for index in played:
            if names := _not_finite(self.values(shard, index)):
                return index, names
        return None


def _entries_of(record: pb.LogRecord) -> list[int]:
    """Give the entries after which a shard stands when it has played a record; none for what is no entry."""
    if record.HasField("commit"):
        return [entry.index for entry in record.commit.entries]
    if record.HasField("push") and record.outcome.kind == pb.OUTCOME_ACCEPTED:
        return [record.outcome.index]
    return [record.base.applied] if record.HasField("base") else []


def find_logs(logs: Path, incarnation: int | None = None) -> RunLogs:
    """Find the logs of a run, one for each shard.

    Args:
        logs: RUN_DIR/log, or what was given to the PS tasks as --log-dir.
        incarnation: Which, also one whose log was moved aside; default the newest whose was not.

    Raises:
        NotFoundError: If there are none, or some shard's is missing.
    """
    which = "" if incarnation is None else f" of incarnation {incarnation}"
    if incarnation is None:
        incarnation = max((int(folder.name) for folder in logs.glob("*") if folder.name.isdigit()), default=0)
    folder = logs / str(incarnation)
    if not folder.is_dir():
        folder = logs / f"{ABANDONED}{incarnation}"
    if not folder.is_dir():
        aside = sorted(folder.name.removeprefix(ABANDONED) for folder in logs.glob(f"{ABANDONED}*"))
        hint = f" Logs that were moved aside: --incarnation {', '.join(aside)}." if aside else ""
        raise NotFoundError(
            f'There is no write-ahead log{which} in {logs}. A run has one with RunPolicy(durability="log"), and keeps '
            f"it when it is over with keep_log=True.{hint}"
        )
    folders: dict[int, Path] = {}
    shards = 1
    for path in folder.glob("shard-*-of-*"):
        _, shard, _, count = path.name.split("-")
        folders[int(shard)] = path
        shards = int(count)
    missing = [shard for shard in range(shards) if shard not in folders]
    if missing:
        raise NotFoundError(f"The logs of shards {missing} are not in {folder}: copy them there.")
    segments = bases_in(folders[0])
    record = _first_record(folders[0], segments[0]) if segments else pb.LogRecord()
    begin = record.base.begin if record.HasField("base") else record.begin
    return RunLogs(folders, begin.sequencer)


def _first_record(folder: Path, segment: int) -> pb.LogRecord:
    for logged in SegmentReader(segment_path(folder, segment)).records():
        return pb.LogRecord.FromString(logged.head)
    raise DataLossError(f"{segment_path(folder, segment)} holds no record.")
