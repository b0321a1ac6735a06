"""The `globalstep` command: one subcommand a module, loaded only when it is called."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence

from globalstep.runtime.log_format import is_open, write_to_stderr
from globalstep.wire.names import printable

#: Subcommand -> (module, help). The module has `configure(parser)` and `run(args) -> exit code`.
_SUBCOMMANDS = {
    "audit": ("globalstep.deploy.audit.cli", "prove from a run's journal that no push was lost or done twice"),
    "checkpoint": ("globalstep.deploy.checkpoint_cli", "list, show, verify, import and export checkpoints"),
    "compose": ("globalstep.deploy.compose", "run a training script as containers of docker compose"),
    "launch": ("globalstep.deploy.launch.launch", "run a training script as PS, workers and chief on this machine"),
    "status": ("globalstep.deploy.status.cli", "where a running cluster stands: steps, rates, workers, PS tasks"),
    "runs": ("globalstep.deploy.status.runs_cli", "which runs of this user are alive on this machine, and how far"),
    "replay": ("globalstep.deploy.replay", "play a run's log again, up to any step; find the first NaN"),
    "ray": ("globalstep.deploy.ray.job", "run a training script as actors of a Ray cluster"),
    "slurm": ("globalstep.deploy.slurm.cli", "write an sbatch script for a training job, and submit it to Slurm"),
}


#: What a shell gives for a command that SIGPIPE has ended.
_EXIT_PIPE = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments without the program's name; default those of the process.

    Returns:
        The exit code.
    """
    write_to_stderr()
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a pipe in latin-1 or ASCII gets what it can show, and \u2582 for what it cannot.
            stream.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog="globalstep", description="Distributed parameter-server training.")
    parser.add_argument("--version", action="version", version=f"globalstep {importlib.metadata.version('globalstep')}")
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="subcommand")
    chosen = arguments[0] if arguments else None
    of_chosen = parser
    for name, (module_name, summary) in _SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        if name == chosen:
            module = importlib.import_module(module_name)
            module.configure(subparser)
            subparser.set_defaults(run=module.run)
            of_chosen = subparser
    try:
        try:
            args, unknown = parser.parse_known_args(arguments)
            if unknown:
                takes_rest = any(action.nargs == argparse.REMAINDER for action in of_chosen._actions)
                whose = " (options of the script come after its name)" if takes_rest else ""
                of_chosen.error(f"unrecognized arguments: {' '.join(unknown)}{whose}")
            code: int = args.run(args)
        finally:
            if is_open(sys.stdout):
                sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has gone, as head does: the rest is written nowhere, when Python ends too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_PIPE
    return code


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, as a terminal may have them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield printable("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
