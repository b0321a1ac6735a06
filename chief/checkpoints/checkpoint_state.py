"""The `checkpoint` state file: which checkpoint of a directory is the latest, and which others it has.

It is TensorFlow's: a CheckpointState message in protobuf's text format, rewritten atomically. Unlike
TensorFlow, `latest_checkpoint` does not stop at a checkpoint that is gone or damaged: it takes the newest
one that is whole, and says why (docs/deviations.md).

Layer: chief. Threads: functions only.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import text_format

from globalstep.chief.checkpoints.checkpoint import is_complete, verify
from globalstep.chief.checkpoints.checkpoint_format import find_index, prefixes_in, read_index
from globalstep.chief.checkpoints.tf_messages import CheckpointState
from globalstep.errors import AbortedError, CheckpointError, NotFoundError, OpError
from globalstep.files.storage import Storage, atomic_write, directory_of, storage_for

_log = logging.getLogger("globalstep")

#: Who wrote a state file, in a comment, which TensorFlow's readers skip: it holds for the checkpoint that it names.
_MARK = re.compile(r'^# globalstep: term (\d{1,20}), mutation index (\d{1,20}), of (".*")$', re.MULTILINE)


def _state_path(storage: Storage, directory: str, latest_filename: str | None) -> str:
    return storage.join(directory, latest_filename or "checkpoint")


def _is_absolute(path: str) -> bool:
    return "://" in path or os.path.isabs(path)


def _relative(path: str, directory: str) -> str:
    if "://" in path:
        start = directory.rstrip("/") + "/"
        return path[len(start) :] if path.startswith(start) else path
    return os.path.relpath(path, directory or ".")


def generate_checkpoint_state_proto(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> Any:
    """Make a CheckpointState, with paths in it relative to `save_dir` where that is a relative path.

    Args:
        save_dir: Directory of the state file.
        model_checkpoint_path: The latest checkpoint.
        all_model_checkpoint_paths: All that are not deleted, oldest first; the latest is put at the end.
        all_model_checkpoint_timestamps: When each was written, seconds since the epoch.
        last_preserved_timestamp: When a checkpoint was last kept for good.

    Raises:
        ValueError: If there are timestamps, but not one for each path.
    """
    paths = list(all_model_checkpoint_paths or [])
    times = all_model_checkpoint_timestamps
    if times and len(times) != len(paths):
        raise ValueError(
            "Checkpoint timestamps, if provided, must match checkpoint paths "
            f"(got paths {paths} and timestamps {list(times)})"
        )
    if model_checkpoint_path not in paths:
        _log.info("%s is not in all_model_checkpoint_paths. Manually adding it.", model_checkpoint_path)
        paths.append(model_checkpoint_path)
        times = None
    if not _is_absolute(save_dir):
        paths = [path if _is_absolute(path) else _relative(path, save_dir) for path in paths]
        if not _is_absolute(model_checkpoint_path):
            model_checkpoint_path = _relative(model_checkpoint_path, save_dir)
    return CheckpointState(
        model_checkpoint_path=model_checkpoint_path,
        all_model_checkpoint_paths=paths,
        all_model_checkpoint_timestamps=times or [],
        last_preserved_timestamp=last_preserved_timestamp or 0.0,
    )


def update_checkpoint_state(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
    *,
    save_relative_paths: bool = False,
    storage: Storage | None = None,
    term: int = 0,
) -> None:
    """Rewrite the state file of a directory, atomically.

    Args:
        save_dir: The directory.
        model_checkpoint_path: The latest checkpoint.
        all_model_checkpoint_paths: All that are not deleted, oldest first.
        latest_filename: Name of the state file; default "checkpoint".
        all_model_checkpoint_timestamps: When each was written, seconds since the epoch.
        last_preserved_timestamp: When a checkpoint was last kept for good.
        save_relative_paths: Write paths relative to `save_dir`, so that it can be moved.
        storage: Where it lies; by default as `save_dir` says.
        term: Of the chief that writes. It is written into the file, with the checkpoint's place in the mutation
            sequence, and a file of a greater term is not replaced, but for one that comes at the same moment: then
            `latest_checkpoint` finds the later checkpoint all the same. 0 for a program without a chief.

    Raises:
        AbortedError: If the file is of a greater term.
        RuntimeError: If the state file would take the place of the checkpoint itself.
        ValueError: If there are timestamps, but not one for each path.
    """
    storage = storage if storage is not None else storage_for(save_dir)
    target = _state_path(storage, save_dir, latest_filename)
    paths = list(all_model_checkpoint_paths or [])
    latest = model_checkpoint_path
    if save_relative_paths:
        paths = [_relative(path, save_dir) for path in paths]
        latest = _relative(latest, save_dir)
        save_dir = os.curdir
    state = generate_checkpoint_state_proto(
        save_dir, latest, paths, all_model_checkpoint_timestamps, last_preserved_timestamp
    )
    if target in (model_checkpoint_path, state.model_checkpoint_path):
        raise RuntimeError(
            f"Save path '{model_checkpoint_path}' conflicts with path used for checkpoint state.  "
            "Please use a different save path."
        )
    text = text_format.MessageToString(state)
    if term:
        at = read_index(storage, model_checkpoint_path).mutation_index
        text += f"# globalstep: term {term}, mutation index {at}, of {json.dumps(state.model_checkpoint_path)}\n"
        mark = _mark(storage, target)
        if mark is not None and mark[0] > term:
            raise AbortedError(f"{target} is of the chief of term {mark[0]}; this one, of term {term}, was replaced.")
    with atomic_write(storage, target, term) as file:
        file.write(text.encode())


def _mark(storage: Storage, path: str) -> tuple[int, int] | None:
    """The (term, mutation index) of what a state file names; None if it does not say, or was edited by hand."""
    try:
        with storage.open_read(path) as file:
            text = file.read().decode()
        marks = _MARK.findall(text)
        state = text_format.Parse(text, CheckpointState(), allow_unknown_field=True)
        if not marks or json.loads(marks[-1][2]) != state.model_checkpoint_path:
            return None
    except (OSError, ValueError, text_format.ParseError):
        return None
    return int(marks[-1][0]), int(marks[-1][1])


def greatest_term(
    storage: Storage, directory: str, save_path: str | None = None, latest_filename: str = "checkpoint"
) -> int:
    """Give the greatest term of a directory's checkpoints and its state file; 0 where there is none.

    Args:
        storage: Where the directory lies.
        directory: The directory.
        save_path: Look only at the checkpoints `<save_path>` and `<save_path>-<number>`.
        latest_filename: Name of the state file.
    """
    ours = re.compile(".*" if save_path is None else rf"{re.escape(save_path)}(-\d+)?")
    terms = [term for prefix, term in prefixes_in(storage, directory).items() if ours.fullmatch(prefix)]
    mark = _mark(storage, _state_path(storage, directory, latest_filename))
    return max([0, *terms, 0 if mark is None else mark[0]])


def get_checkpoint_state(
    checkpoint_dir: str, latest_filename: str | None = None, storage: Storage | None = None
) -> Any:
    """Read the state file of a directory.

    Args:
        checkpoint_dir: The directory.
        latest_filename: Name of the state file; default "checkpoint".
        storage: Where it lies; by default as `checkpoint_dir` says.

    Returns:
        TensorFlow's message: model_checkpoint_path; all_model_checkpoint_paths, oldest first;
        all_model_checkpoint_timestamps in the same order and last_preserved_timestamp, both in seconds
        since the epoch. Relative paths are put to `checkpoint_dir`. None if the file is not there or
        cannot be read (which is logged).

    Raises:
        ValueError: If the file names no checkpoint.
    """
    storage = storage if storage is not None else storage_for(checkpoint_dir)
    path = _state_path(storage, checkpoint_dir, latest_filename)
    try:
        with storage.open_read(path) as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("%s: %s", path, error)
        return None
    try:
        state = text_format.Parse(text.decode(), CheckpointState(), allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        _log.warning("%s: %s", path, error)
        return None
    if not state.model_checkpoint_path:
        raise ValueError(f"Invalid checkpoint state loaded from {checkpoint_dir}")
    if not _is_absolute(state.model_checkpoint_path):
        state.model_checkpoint_path = storage.join(checkpoint_dir, state.model_checkpoint_path)
    for number, named in enumerate(state.all_model_checkpoint_paths):
        if not _is_absolute(named):
            state.all_model_checkpoint_paths[number] = storage.join(checkpoint_dir, named)
    return state


def checkpoint_exists(checkpoint_prefix: str) -> bool:
    """Say whether there is a checkpoint (its index) with a prefix.

    Args:
        checkpoint_prefix: The prefix.
    """
    return find_index(storage_for(checkpoint_prefix), checkpoint_prefix) is not None


def get_checkpoint_mtimes(checkpoint_prefixes: Sequence[str]) -> list[float]:
    """Give when checkpoints were written; those that are not there are left out.

    Args:
        checkpoint_prefixes: Their prefixes.

    Returns:
        Seconds since the epoch, in the same order.
    """
    indexes = [(storage_for(prefix), find_index(storage_for(prefix), prefix)) for prefix in checkpoint_prefixes]
    return [storage.mtime(path) for storage, path in indexes if path is not None]


def committed_after(storage: Storage, directory: str, after: float) -> list[tuple[str, float]]:
    """Give the complete checkpoints of a directory, meant for its state file, that are newer than a time.

    Returns:
        (prefix, when it was committed), oldest first.
    """
    committed = []
    for prefix in prefixes_in(storage, directory):
        if (time := _mtime(storage, prefix)) > after:
            try:
                wanted = read_index(storage, prefix).in_state and is_complete(prefix, storage)
            except OpError:
                continue
            if wanted:
                committed.append((prefix, time))
    return sorted(committed, key=lambda entry: entry[1])


#: More than a directory keeps by default, ten times over.
_MOST_VERIFIED = 64


# Guards _verified; a leaf: nothing else is taken under it.
_lock = threading.Lock()
#: The last checkpoints that this process has verified -> how their files looked.
_verified: dict[str, tuple[Any, ...]] = {}


def latest_checkpoint(
    checkpoint_dir: str,
    latest_filename: str | None = None,
    *,
    thorough: bool | None = None,
    storage: Storage | None = None,
) -> str | None:
    """Find the newest checkpoint of a directory that is whole.

    It is the one that the state file names, or a later one of that chief's or of one that replaced it (by
    term and place in the mutation sequence); if that one is incomplete or corrupt, or the state file
    cannot be read, the newest whole one besides, and a warning says why.

    Args:
        checkpoint_dir: The directory.
        latest_filename: Name of the state file; default "checkpoint".
        thorough: Compare every checksum (once in a process for each checkpoint), not only files and
            sizes. By default on local storage only: object stores keep checksums of their own.
        storage: Where it lies; by default as `checkpoint_dir` says.

    Returns:
        The checkpoint's prefix; None if there is no state file, or no whole checkpoint.
    """
    storage = storage if storage is not None else storage_for(checkpoint_dir)
    if not storage.exists(_state_path(storage, checkpoint_dir, latest_filename)):
        return None
    try:
        state = get_checkpoint_state(checkpoint_dir, latest_filename, storage)
    except ValueError as error:
        _log.warning("%s", error)
        state = None
    thorough = storage.is_local if thorough is None else thorough
    reasons: list[str] = []
    mark = _mark(storage, _state_path(storage, checkpoint_dir, latest_filename))
    for prefix in _candidates(storage, checkpoint_dir, state, mark):
        reason = _why_not(storage, prefix, thorough)
        if reason is None:
            if reasons:
                _log.warning(
                    "Falling back to the checkpoint %s: %s Training that goes on from there does again what came after "
                    "it; to keep that, stop it, and bring back the files first.",
                    prefix,
                    " ".join(reasons),
                )
            return prefix
        reasons.append(reason)
    if reasons:
        _log.error(
            "No whole checkpoint in %s: %s A session with this directory begins anew at step 0, and its checkpoints "
            "replace these; to keep them, stop it, and bring back the files or give it another directory.",
            checkpoint_dir,
            " ".join(reasons),
        )
    return None


def find_checkpoint(path: str) -> str | None:
    """Give the prefix of a checkpoint, which a path is, or of the newest in a directory; None without one."""
    return path if checkpoint_exists(path) else latest_checkpoint(path)


def _verify_once(storage: Storage, prefix: str) -> None:
    """Verify a checkpoint, unless that was done and its files look the same."""
    directory, index = directory_of(prefix), read_index(storage, prefix)
    paths = [find_index(storage, prefix) or prefix, *(storage.join(directory, file.file) for file in index.files)]
    try:
        looks = tuple((path, storage.size(path), storage.mtime(path)) for path in paths)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {prefix} is not complete: {error}.") from error
    with _lock:
        if _verified.get(prefix) == looks:
            return
    verify(prefix, storage)
    with _lock:
        _verified[prefix] = looks
        while len(_verified) > _MOST_VERIFIED:  # the one that was verified first
            del _verified[next(iter(_verified))]


def _why_not(storage: Storage, prefix: str, thorough: bool) -> str | None:
    try:
        if thorough:
            _verify_once(storage, prefix)
        elif not is_complete(prefix, storage):
            return f"The checkpoint {prefix} is not complete."
    except NotFoundError:
        return f"Couldn't match files for checkpoint {prefix}."
    except OpError as error:
        return error.message
    return None


def _candidates(storage: Storage, directory: str, state: Any, mark: tuple[int, int] | None) -> Iterator[str]:
    """Prefixes to try, best first: later ones than the state file names, its own, others by the time of writing."""
    tried: list[str] = []
    base = None
    if state is not None:
        later = [] if mark is None else _later(storage, directory, state.model_checkpoint_path, mark)
        named = [state.model_checkpoint_path, *reversed(state.all_model_checkpoint_paths)]
        tried = list(dict.fromkeys([*later, *named]))
        yield from tried
        # Another Saver's checkpoints in the same directory are not of this state file.
        base = re.sub(r"-\d+$", "", state.model_checkpoint_path)
    others = [
        prefix
        for prefix in prefixes_in(storage, directory)
        if prefix not in tried and (base is None or re.sub(r"-\d+$", "", prefix) == base)
    ]
    yield from sorted(others, key=lambda prefix: _mtime(storage, prefix), reverse=True)


def _later(storage: Storage, directory: str, named: str, mark: tuple[int, int]) -> list[str]:
    """Checkpoints that come after the one that the state file names, the last one first.

    They are there where a chief died between a checkpoint's index and the state file, and where one that slept has set
    the state file back.
    """
    base = re.sub(r"-\d+$", "", named)
    since = _mtime(storage, named)
    later = []
    for prefix, term in prefixes_in(storage, directory).items():
        ours = re.sub(r"-\d+$", "", prefix) == base
        # Most are of the one chief's term; what it wrote before what the state file names need not be read.
        if ours and (term > mark[0] or (term == mark[0] and _mtime(storage, prefix) >= since)):
            try:
                index = read_index(storage, prefix)
            except OpError:
                continue
            if index.in_state and (index.term, index.mutation_index) > mark:
                later.append(((index.term, index.mutation_index), prefix))
    return [prefix for _, prefix in sorted(later, reverse=True)]


def _mtime(storage: Storage, prefix: str) -> float:
    try:
        return storage.mtime(find_index(storage, prefix) or prefix)
    except OSError:  # deleted in the meantime: tried last, and found missing then
        return 0.0
