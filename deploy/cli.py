"""The `globalstep` command: one subcommand a module, loaded only when it is called.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["main"]

#: Subcommand -> (module, help). The module has `configure(parser)` and `run(args) -> exit code`.
_SUBCOMMANDS = {
    "audit": ("globalstep.deploy.audit.cli", "prove from a run's journal that no push was lost or done twice"),
    "checkpoint": ("globalstep.deploy.checkpoint_cli", "list, show, verify and import checkpoints"),
    "bench": ("globalstep.deploy.bench.cli", "measure what the parts of a step cost on this machine, for plan"),
    "compose": ("globalstep.deploy.compose.cli", "run a training script as containers of docker compose"),
    "launch": ("globalstep.deploy.launch.launch", "run a training script as PS, workers and chief on this machine"),
    "plan": ("globalstep.deploy.plan.cli", "how many PS tasks a job needs, and what is to be expected: a simulation"),
    "status": ("globalstep.deploy.status.cli", "where a running cluster stands: steps, rates, workers, PS tasks"),
    "where": ("globalstep.deploy.status.where_cli", "where each Variable of a running cluster lies"),
    "replay": ("globalstep.deploy.replay.cli", "play a run's log again, up to any step; find the first NaN"),
    "ray": ("globalstep.deploy.ray.cli", "run a training script as actors of a Ray cluster"),
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
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="globalstep", description="Distributed parameter-server training.")
    parser.add_argument("--version", action="version", version=f"globalstep {importlib.metadata.version('globalstep')}")
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="subcommand")
    chosen = arguments[0] if arguments else None
    for name, (module_name, summary) in _SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        if name == chosen:
            module = importlib.import_module(module_name)
            module.configure(subparser)
            subparser.set_defaults(run=module.run)
    try:
        try:
            args = parser.parse_args(arguments)
            code: int = args.run(args)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Who read the output has gone, as head does: what is left to say is said to nobody, when Python ends too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_PIPE
    return code
