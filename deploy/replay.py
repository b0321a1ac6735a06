"""`globalstep replay RUN_DIR`: what a run with durability="log" held at any step, bit for bit, from its log."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from globalstep.ps.wal.durability import log_folder
from globalstep.ps.wal.log_file import SegmentReader, readers, segment_path, segments_in
from globalstep.ps.wal.recovery import Replay, bases_in
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire import codec

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
        steps = [decision.steps[args.step_name] for decision in decisions.values() if args.step_name in decision.steps]
        span = f"steps {min(steps)} to {max(steps)}" if steps else "no step of that name"
        raise NotFoundError(f"The log never reaches {args.step_name} {args.to_step}: it has {span}.")
    return max(reached)


def _is_at(entry: LoggedEntry, args: argparse.Namespace) -> bool:
    return bool(entry.steps.get(args.step_name) == args.to_step)


def _checkpoint(
    args: argparse.Namespace, is_it: Callable[[CheckpointIndex], bool]
) -> tuple[str, CheckpointIndex] | None:
    """Give the newest complete checkpoint that fulfils a condition; None if there is none."""
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
    first: NotFinite | None = None
    for shard in shards:
        here = logs.find_not_finite(shard, up_to)
        if here is not None and (first is None or here.index < first.index):
            first = here
        elif here is not None and first is not None and here.index == first.index:
            first.values += here.values
    if first is None:
        print("Every value that the log leads to is finite.")
        return 0
    decision = decisions.get(first.index)
    print(f"The first value that is not finite came with entry {first.index}: {', '.join(first.values)}.")
    if decision is None:
        print("The sequencer's log does not go back to it.")
        return 3
    for shard in sorted(logs.folders):
        squares, bad = logs.gradient_squares(shard, (decision.client, decision.sequence))
        first.squares += squares
        first.gradients += bad
    print(f"  worker:        {decision.task or '(no task)'}, client {decision.client}")
    print(f"  its push:      number {decision.sequence}")
    print(f"  steps after:   {', '.join(f'{name} {value}' for name, value in sorted(decision.steps.items()))}")
    print(f"  staleness:     {decision.staleness}")
    print(f"  gradient norm: {first.norm:g}")
    if first.gradients:
        print(f"  not finite:    the gradients of {', '.join(first.gradients)}")
    else:
        print("  all gradients: finite; it was the update that overflowed")
    return 3


#: What a PS task puts before the number of a life whose log it moves aside.
_ABANDONED = "abandoned-"


@dataclass(frozen=True, slots=True)
class LoggedEntry:
    """An entry of the run, as its sequencer decided."""

    index: int
    kind: int
    client: str
    sequence: int
    #: "" where the client did not say.
    task: str
    staleness: int
    #: Every step after it.
    steps: Mapping[str, int]


@dataclass(slots=True)
class NotFinite:
    """The push after which a value was not finite for the first time."""

    index: int
    #: Variables whose values were not finite after it, and those whose gradients were not.
    values: list[str] = field(default_factory=list[str])
    gradients: list[str] = field(default_factory=list[str])
    #: Square of the norm of the push's gradients, over all shards.
    squares: float = 0.0

    @property
    def norm(self) -> float:
        """Norm of all gradients of the push."""
        return math.sqrt(self.squares)


@dataclass(frozen=True, slots=True)
class RunLogs:
    """The logs of one incarnation.

    Attributes:
        incarnation: Which.
        folders: Shard -> its log.
        sequencer: Which shard decided.
    """

    incarnation: int
    folders: Mapping[int, Path]
    sequencer: int

    def decisions(self) -> Iterator[LoggedEntry]:
        """Give what was accepted, in order, as far back as the sequencer's log goes."""
        folder = self.folders[self.sequencer]
        for reader in readers(folder, segments_in(folder)):
            for logged in reader.records():
                record = pb.LogRecord.FromString(logged.head)
                push, outcome = record.push.id, record.outcome
                if record.HasField("push") and outcome.kind == pb.OUTCOME_ACCEPTED:
                    yield LoggedEntry(
                        outcome.index,
                        record.entry_kind,
                        push.client,
                        push.sequence,
                        record.task,
                        outcome.staleness,
                        dict(outcome.steps),
                    )

    def values(self, shard: int, up_to: int | None) -> dict[str, Array]:
        """Give what a shard held after an entry; None for the last.

        Raises:
            NotFoundError: If the log does not go back so far.
            DataLossError: If it is damaged.
        """
        stop = _StopAfter(up_to)
        replay = Replay(self.folders[shard], SYSTEM_CLOCK, stop.before, start=self._start(shard, up_to))
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

    def find_not_finite(self, shard: int, up_to: int | None) -> NotFinite | None:
        """Find the first entry of a shard after which a value was not finite.

        Raises:
            DataLossError: If the log is damaged.
        """
        stop = _StopAfter(up_to)
        search = _Search(stop)
        replay = Replay(self.folders[shard], SYSTEM_CLOCK, search.before, start=bases_in(self.folders[shard])[0])
        replay.run()
        search.look(replay)
        return search.found

    def gradient_squares(self, shard: int, push: tuple[str, int]) -> tuple[float, list[str]]:
        """Give the sum of squares of a push's gradients on a shard, and the Variables where it is not finite."""
        for reader in readers(self.folders[shard], segments_in(self.folders[shard])):
            for logged in reader.records():
                record = pb.LogRecord.FromString(logged.head)
                message = record.push if record.HasField("push") else record.stage
                if record.part and (message.id.client, message.id.sequence) == push:
                    return _squares_of(record, logged.data)
        return 0.0, []


def find_logs(logs: Path, incarnation: int | None = None) -> RunLogs:
    """Find the logs of a run, one for each shard.

    Args:
        logs: RUN_DIR/log, or what was given to the PS tasks as --log-dir.
        incarnation: Which, also one whose log was moved aside; default the newest whose was not.

    Raises:
        NotFoundError: If there are none, or some shard's is missing.
    """
    lives = {int(folder.name): folder for folder in logs.glob("*") if folder.name.isdigit()}
    aside = {
        int(number): folder
        for folder in logs.glob(f"{_ABANDONED}*")
        if (number := folder.name.removeprefix(_ABANDONED)).isdigit()
    }
    chosen = max(lives, default=None) if incarnation is None else incarnation
    folder = lives.get(chosen) or aside.get(chosen) if chosen is not None else None
    if chosen is None or folder is None:
        which = "" if incarnation is None else f" of incarnation {incarnation}"
        hint = f" Logs that were moved aside: --incarnation {', '.join(map(str, sorted(aside)))}." if aside else ""
        raise NotFoundError(
            f'There is no write-ahead log{which} in {logs}. A run has one with RunPolicy(durability="log"), and keeps '
            f"it when it is over with keep_log=True.{hint}"
        )
    folders: dict[int, Path] = {}
    shards = 0
    for path in folder.glob("shard-*-of-*"):
        _, shard, _, count = path.name.split("-")
        folders[int(shard)] = path
        shards = int(count)
    missing = [shard for shard in range(max(shards, 1)) if shard not in folders]
    if missing:
        raise NotFoundError(f"The logs of shards {missing} are not in {folder}: copy them there.")
    return RunLogs(chosen, folders, _begin_of(folders[0]).sequencer)


class _StopAfter:
    """Lets a replay go on up to an entry, that one included."""

    def __init__(self, up_to: int | None) -> None:
        self._up_to = up_to

    def before(self, replay: Replay, record: pb.LogRecord, data: memoryview) -> bool:
        if self._up_to is None:
            return True
        if record.HasField("push") and record.outcome.kind == pb.OUTCOME_ACCEPTED:
            return record.outcome.index <= self._up_to
        if record.HasField("commit"):
            wanted = [entry for entry in record.commit.entries if entry.index <= self._up_to]
            if not wanted and record.commit.entries:
                return False
            del record.commit.entries[len(wanted) :]
        return True


class _Search:
    """Looks, after every entry, at the Variables that it changed."""

    def __init__(self, stop: _StopAfter) -> None:
        self._stop = stop
        self._changed: dict[tuple[str, int], list[str]] = {}
        self._index = 0
        self._last: list[str] = []
        self.found: NotFinite | None = None

    def before(self, replay: Replay, record: pb.LogRecord, data: memoryview) -> bool:
        self.look(replay)
        if self.found is not None or not self._stop.before(replay, record, data):
            return False
        if record.part:
            message = record.push if record.HasField("push") else record.stage
            part = pb.StageRequest.FromString(record.part)
            self._changed[message.id.client, message.id.sequence] = [op.variable for op in part.ops]
        if record.HasField("push") and record.outcome.kind == pb.OUTCOME_ACCEPTED:
            self._index, self._last = record.outcome.index, self._of(record.push.id)
        elif record.HasField("commit") and record.commit.entries:
            # Entries that were brought together are looked at one by one.
            replay.split_entries(record)
            entry = record.commit.entries[0]
            self._index, self._last = entry.index, self._of(entry.push)
        return True

    def _of(self, push: pb.PushId) -> list[str]:
        return self._changed.pop((push.client, push.sequence), [])

    def look(self, replay: Replay) -> None:
        """See whether what was changed last is finite."""
        if self._last:
            bad = replay.not_finite(self._last)
            if bad:
                self.found = NotFinite(self._index, bad)
            self._last = []


def _squares_of(record: pb.LogRecord, data: memoryview) -> tuple[float, list[str]]:
    squares, bad = 0.0, []
    for message in pb.StageRequest.FromString(record.part).ops:
        op = codec.decode_op(message, data)
        if op.value is not None and op.value.dtype.kind == "f":
            with np.errstate(all="ignore"):
                squares += float(np.sum(np.square(op.value.astype(np.float64))))
            if not np.isfinite(op.value).all():
                bad.append(op.variable)
    return squares, bad


def _begin_of(folder: Path) -> pb.BeginRequest:
    segments: Sequence[int] = bases_in(folder)
    record = _first_record(folder, segments[0]) if segments else pb.LogRecord()
    return record.base.begin if record.HasField("base") else record.begin


def _first_record(folder: Path, segment: int) -> pb.LogRecord:
    for logged in SegmentReader(segment_path(folder, segment)).records():
        return pb.LogRecord.FromString(logged.head)
    raise DataLossError(f"{segment_path(folder, segment)} holds no record.")
