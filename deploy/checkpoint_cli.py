"""`globalstep checkpoint`: list, show and verify checkpoints, export them and their models, import TensorFlow's."""

from __future__ import annotations

import argparse
import datetime
import sys

from globalstep.chief.checkpoints.checkpoint import CheckpointReader, is_complete, verify
from globalstep.chief.checkpoints.checkpoint_format import find_index, prefixes_in
from globalstep.chief.checkpoints.checkpoint_state import checkpoint_exists, find_checkpoint, get_checkpoint_state
from globalstep.chief.checkpoints.tf_checkpoints import export_checkpoint, import_checkpoint
from globalstep.chief.training.saved_model import export_model
from globalstep.deploy.cli import aligned
from globalstep.errors import GlobalStepError, NotFoundError
from globalstep.files.storage import storage_for
from globalstep.wire.names import printable


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    listing = actions.add_parser("ls", help="list the checkpoints of a directory")
    listing.add_argument("path", metavar="DIR", help="directory, as a path or URL")
    listing.set_defaults(act=_ls)
    showing = actions.add_parser("show", help="show what a checkpoint holds")
    showing.add_argument("path", metavar="DIR|PREFIX", help="a checkpoint, or a directory for its latest")
    showing.set_defaults(act=_show)
    verifying = actions.add_parser("verify", help="read checkpoints and compare every checksum")
    verifying.add_argument("path", metavar="DIR|PREFIX", help="a checkpoint, or a directory for all of its")
    verifying.set_defaults(act=_verify)
    exporting = actions.add_parser("export", help="write the model alone to a file for other programs")
    exporting.add_argument("path", metavar="DIR|PREFIX", help="a checkpoint, or a directory for its latest")
    exporting.add_argument("target", metavar="FILE", help="its ending says the format: .pt, .pth, .safetensors, .npz")
    exporting.add_argument("--step", metavar="N|best", help="the checkpoint of that step, or the best one")
    exporting.add_argument("--ema", action="store_true", help="the moving averages of gs.fit(ema_decay=...)")
    exporting.add_argument(
        "--tensorflow", action="store_true",
        help="write the whole checkpoint as a TensorFlow V2 checkpoint, whose prefix FILE is",
    )  # fmt: skip
    exporting.set_defaults(act=_export)
    importing = actions.add_parser("import", help="convert a TensorFlow V2 checkpoint")
    importing.add_argument("path", metavar="TF_PREFIX", help="e.g. /data/model.ckpt-1000, without .index")
    importing.add_argument("directory", metavar="DIR", help="where the new checkpoint goes")
    importing.set_defaults(act=_import)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        The exit code: 0; 1 if something is missing or damaged.
    """
    try:
        code: int = args.act(args)
        return code
    except (GlobalStepError, ValueError, ImportError) as error:
        print(f"globalstep checkpoint {args.action}: {error}", file=sys.stderr)
        return 1


def _ls(args: argparse.Namespace) -> int:
    directory = args.path
    prefixes, storage = _checkpoints(directory), storage_for(directory)
    if not prefixes:
        if storage.is_directory(directory):
            raise NotFoundError(f"There is no checkpoint in {directory}.")
        if checkpoint_exists(directory):
            raise NotFoundError(f"{directory} is a checkpoint, not a directory: see `globalstep checkpoint show`.")
        is_file = storage.exists(directory)
        raise NotFoundError(f"{directory} is a file." if is_file else f"There is no directory {directory}.")
    state = get_checkpoint_state(directory)
    latest = None if state is None else state.model_checkpoint_path
    rows = []
    for prefix in prefixes:
        name = prefix.rsplit("/", 1)[-1]
        if not is_complete(prefix):
            rows.append((name, "", "", "", "", "incomplete: see `globalstep checkpoint verify`"))
            continue
        with CheckpointReader(prefix) as reader:
            index = reader.index
        rows.append(
            (
                name,
                " ".join(f"{step}={value}" for step, value in sorted(index.steps.items())),
                str(len(index.variables)),
                _size(index.nbytes),
                _time(index.written_at),
                "latest" if prefix == latest else "",
            )
        )
    print(*aligned([("CHECKPOINT", "STEPS", "TENSORS", "SIZE", "WRITTEN", ""), *rows]), sep="\n")
    return 0


def _whole(path: str) -> str:
    prefix = find_checkpoint(path)
    if prefix is None:
        raise ValueError(f"{path} is neither a checkpoint nor a directory with a whole one.")
    return prefix


def _show(args: argparse.Namespace) -> int:
    prefix = _whole(args.path)
    with CheckpointReader(prefix) as reader:
        index = reader.index
    print(f"checkpoint  {prefix}")
    for step, value in sorted(index.steps.items()):
        print(printable(f"step        {step} = {value}"))
    print(f"written     {_time(index.written_at)}")
    print(f"size        {_size(index.nbytes)} in {len(index.files)} file(s)")
    for file in index.files:
        print(printable(f"            {file.file}"))
    print()
    rows = [
        ("TENSOR", "KIND", "DTYPE", "SHAPE", "SIZE", "FILE"),
        *(
            (
                name,
                saved.kind,
                saved.dtype,
                str(list(saved.shape)),
                _size(saved.nbytes),
                " ".join(map(str, dict.fromkeys(part.file for part in saved.parts))),
            )
            for name, saved in sorted(index.variables.items())
        ),
    ]
    print(*aligned(rows), sep="\n")
    return 0


def _verify(args: argparse.Namespace) -> int:
    path = args.path
    prefixes = [path] if checkpoint_exists(path) else _checkpoints(path)
    if not prefixes:
        raise ValueError(f"{path} is neither a checkpoint nor a directory with some.")
    failed = 0
    for prefix in prefixes:
        try:
            index = verify(prefix)
        except GlobalStepError as error:
            failed += 1
            print(printable(f"FAILED  {prefix}: {error}"))
        else:
            print(f"ok      {prefix}: {len(index.variables)} tensors, {_size(index.nbytes)}")
    return 1 if failed else 0


def _import(args: argparse.Namespace) -> int:
    made = import_checkpoint(args.path, args.directory)
    print(f"Imported {len(made.names)} tensors of {args.path} as {made.prefix}.")
    for name, dtype in sorted(made.left_out.items()):
        print(printable(f"Left out {name}: its dtype {dtype} has no place in a checkpoint."))
    return 0


def _export(args: argparse.Namespace) -> int:
    if args.tensorflow:
        if args.step or args.ema:
            raise ValueError("--tensorflow writes a whole checkpoint: name its prefix, and leave out --step and --ema.")
        prefix = _whole(args.path)
        exported = export_checkpoint(prefix, args.target)
        target = args.target.removesuffix(".index")
        print(f"Exported {len(exported)} tensors of {prefix} as {target}, for TensorFlow.")
        return 0
    step = int(args.step) if args.step and args.step.isdecimal() else args.step
    names = export_model(args.path, args.target, step=step, ema=args.ema)
    print(f"Wrote {len(names)} tensors of {args.path} to {args.target}.")
    return 0


def _checkpoints(directory: str) -> list[str]:
    """Prefixes of all checkpoints of a directory, oldest first."""
    storage = storage_for(directory)
    try:
        prefixes = prefixes_in(storage, directory)
    except NotADirectoryError:
        return []
    indexes = ((prefix, find_index(storage, prefix)) for prefix in prefixes)
    times = {prefix: storage.mtime(path) for prefix, path in indexes if path is not None}
    return sorted(times, key=times.__getitem__)


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
