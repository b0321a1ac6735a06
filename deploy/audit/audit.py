"""The audit of a run's journal: whether its step is the number of its accepted pushes, and who pushed them.

Proven is, for the newest incarnation and those whose checkpoints it goes back to: every entry has its place in one
sequence without a gap; no push was decided twice; each step is its first value and what the accepted pushes moved it
on; each incarnation began with exactly what its checkpoint held; and the newest checkpoint agrees.

Layer: deploy. Single thread: the caller's.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from globalstep.chief.checkpoints.checkpoint import verify
from globalstep.chief.checkpoints.checkpoint_format import CheckpointIndex, prefixes_in, read_index
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state, latest_checkpoint
from globalstep.deploy.audit.checks import Audit, Reader, StepProof
from globalstep.deploy.audit.history_checker import BadHistoryError, DecidedPushes, events_of, judge
from globalstep.deploy.audit.reading import Findings, Volume, read_volumes
from globalstep.errors import NotFoundError, OpError
from globalstep.files.storage import storage_for
from globalstep.wire.known_progress import Known, KnownProgress

_NO_LIMIT = 2**63 - 1


def audit(directory: str, histories: Sequence[str] = ()) -> Audit:
    """Audit the journal of a run.

    Args:
        directory: The run's, path or URL.
        histories: Files of what its clients saw, to be judged together with the journal.

    Returns:
        The result. What is damaged or missing is among its findings; nothing is raised for it.
    """
    result = Audit()
    findings = result.findings
    progress = KnownProgress()
    storage = storage_for(directory)
    if not storage.is_directory(directory):
        problem = "is a file" if storage.exists(directory) else "is not there"
        findings.unreadable.append(f"{directory} {problem}. Give the run's directory: its run_dir, or checkpoint_dir.")
        return result
    volumes = read_volumes(directory, findings, progress)
    if not volumes:
        findings.unreadable.append(f"{directory} holds no journal.")
        return result
    chain = _chain(volumes, findings)
    numbers = {volume.incarnation for volume in volumes}
    saved = _Saved.newest(directory, findings)
    proofs: dict[str, StepProof] = {}
    decided = DecidedPushes()
    last_steps: dict[str, int] = {}
    events: list[Mapping[str, Any]] = []
    for volume in volumes:
        child = chain.get(volume.incarnation)
        begin = volume.header.begin_index if volume.header is not None else 0
        kept_until = begin if volume.incarnation not in chain else _NO_LIMIT
        if volume.incarnation == min(chain) and volume.header is not None:
            proofs.update((name, StepProof(base=value)) for name, value in volume.header.begin_steps.items())
        if volume.header is not None and (not begin or volume.header.parent in numbers):
            source = [volume.header.parent, begin] if begin else None
            facts = {"incarnation": volume.incarnation, "from": source, "read": volume.header.begin_steps}
            events.append({"f": "begin", "value": facts})
        marks = []
        if child is not None and child.header is not None:
            kept_until = child.header.begin_index
            marks.append(kept_until)
        ours = saved is not None and saved.incarnation == volume.incarnation
        if saved is not None and ours:
            marks.append(saved.index)
        reader = Reader(
            volume,
            kept_until,
            marks,
            saved.outcomes if saved is not None and ours else (),
            proofs if volume.incarnation in chain else None,
            decided,
            result,
            events if histories else None,
        )
        audited = reader.read()
        if volume is not volumes[-1]:
            # A later one has followed. Its journal may not show all losses; clients may have heard of more.
            known = progress.of(volume.incarnation) or Known()
            if known.index > audited.last_index:
                moved = [value - audited.steps.get(name, 0) for name, value in known.steps.items()]
                audited.unrecorded = max(-(-max(moved, default=0) // reader.most_by), 0)
                audited.lost += audited.unrecorded
                audited.lost_at_least = True
            else:
                audited.lost_at_least = not (volume.complete or known.last)
        result.incarnations.append(audited)
        last_steps = audited.steps
        if child is not None and child.header is not None:
            # It begins with exactly what the one before it held at that place.
            began, steps = f"Incarnation {child.incarnation} began", child.header.begin_steps
            findings.wrong += filter(None, [reader.book.beside(kept_until, steps, began, volume.incarnation)])
        if saved is not None and ours:
            saved.compare(findings, begin, reader)
    for name, proof in proofs.items():
        proof.value = last_steps.get(name, 0)
        if proof.base + proof.moved != proof.value:
            findings.wrong.append(
                f"{name} is {proof.value}, but {proof.base} and what {proof.pushes} accepted pushes moved it on make "
                f"{proof.base + proof.moved}."
            )
    result.steps = proofs
    if histories:
        # What clients saw, together with the journal.
        try:
            judgement = judge(itertools.chain(events, *map(events_of, histories)))
            result.history = dict(judgement.counts)
            if judgement.wrong:
                findings.wrong += [judgement.wrong, *judgement.operations]
        except (BadHistoryError, OSError) as error:
            findings.unreadable.append(str(error))
    if saved is not None:
        result.checkpoint, result.checkpoint_steps = saved.prefix, saved.steps
        if all(volume.incarnation != saved.incarnation for volume in volumes):
            findings.wrong.append(
                f"Checkpoint {saved.prefix} is of incarnation {saved.incarnation}, of which there is no journal."
            )
    return result


def _chain(volumes: list[Volume], findings: Findings) -> dict[int, Volume | None]:
    """Give the incarnations that the newest one goes back to, each with the one that began from its checkpoint."""
    by_number = {volume.incarnation: volume for volume in volumes}
    chain: dict[int, Volume | None] = {}
    volume, child = volumes[-1], None
    while True:
        chain[volume.incarnation] = child
        header = volume.header
        if header is None or (not header.parent and not header.begin_index):
            return chain
        parent = by_number.get(header.parent)
        if parent is None or parent.incarnation >= volume.incarnation:
            findings.wrong.append(
                f"Incarnation {volume.incarnation} began after entry {header.begin_index} of incarnation "
                f"{header.parent or '(not known)'}, of which there is no journal."
            )
            return chain
        volume, child = parent, volume


def _check_named(directory: str, findings: Findings) -> None:
    """Find out whether the checkpoint that the state file names as the newest is whole."""
    try:
        state = get_checkpoint_state(directory)
    except ValueError as error:
        findings.unreadable.append(str(error))
        return
    if state is None:
        storage = storage_for(directory)
        if storage.exists(storage.join(directory, "checkpoint")):
            findings.unreadable.append(f"The state file of {directory} cannot be read.")
        elif prefixes_in(storage, directory):
            findings.unreadable.append(f"{directory} has checkpoints, but no state file that names the newest one.")
        return
    newest = state.model_checkpoint_path
    try:
        verify(newest)
    except NotFoundError:
        findings.unreadable.append(f"Checkpoint {newest}, which the state file names as the newest, is gone.")
    except OpError as error:
        findings.unreadable.append(f"Checkpoint {newest}, which the state file names, is damaged: {error}")


class _Saved:
    """The newest checkpoint's ledger, as evidence beside the journal."""

    def __init__(self, prefix: str, index: CheckpointIndex) -> None:
        state = json.loads(index.ledger)
        self.prefix = prefix
        self.incarnation = int(state.get("incarnation", 0))
        self.index = int(state["index"])
        self.steps = {str(name): int(value) for name, value in state["steps"].items()}
        self._index_steps = dict(index.steps)
        #: Index -> whose push is on record there.
        self.outcomes = {
            int(at): (str(client), int(sequence))
            for client, entry in state["clients"].items()
            for sequence, _, at, *_ in entry["outcomes"]
            if at
        }

    @classmethod
    def newest(cls, directory: str, findings: Findings) -> _Saved | None:
        """Read the newest checkpoint of a directory; None if there is none, or none that can be read."""
        _check_named(directory, findings)
        prefix = latest_checkpoint(directory)
        if prefix is None:
            return None
        try:
            return cls(prefix, read_index(storage_for(prefix), prefix))
        except OpError as error:
            findings.unreadable.append(str(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            findings.unreadable.append(f"Checkpoint {prefix} has no ledger that can be read: {error!r}.")
        return None

    def compare(self, findings: Findings, begin: int, reader: Reader) -> None:
        """Hold it against the journal of its incarnation."""
        what = f"Checkpoint {self.prefix} was taken"
        for steps in (self.steps, self._index_steps):
            findings.wrong += filter(None, [reader.book.beside(self.index, steps, what, self.incarnation)])
        for index, push in self.outcomes.items():
            client, number = reader.pushes.get(index, push)
            if index > begin and (client, number) != push:
                findings.wrong.append(
                    f"Checkpoint {self.prefix} has push {push[1]} of client {push[0]} at entry {index} of incarnation "
                    f"{self.incarnation}; the journal has push {number} of client {client} there."
                )
