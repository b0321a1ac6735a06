"""`globalstep compose up`: writes a file for docker compose, and starts the job.

Floor: deploy.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from globalstep.deploy.compose_file import ComposeJob, compose_file

__all__ = ["configure", "run"]

#: A docker that says nothing for so long has hung.
_ANSWER_SECS = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("action", choices=["up", "write"], help="write the file and start the job, or only write it")
    parser.add_argument("--ps", type=int, default=1, metavar="N", help="number of PS tasks (default 1)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="M",
        help="number of workers (default 1); without --chief the first of them is the chief",
    )  # fmt: skip
    parser.add_argument("--chief", action="store_true", help="start a chief besides the workers")
    parser.add_argument("--tensorboard", action="store_true", help="start a TensorBoard on port 6006 of this machine")
    parser.add_argument("--file", type=Path, metavar="FILE", help="where to write it (default: NAME.compose.yml, here)")
    parser.add_argument("--detach", action="store_true", help="do not wait for the job's end")
    parser.add_argument("script", help="the training script, run by every worker and the chief; its folder is mounted")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; gives its exit code: with `up`, that of the chief."""
    script = Path(args.script)
    if args.ps < 1 or args.workers < (0 if args.chief else 1):
        return _say("at least one PS and one worker (or the chief) are needed")
    if not script.is_file():
        return _say(f"there is no script {args.script}")
    job = ComposeJob(
        script.name, str(script.resolve().parent), args.args, args.ps, args.workers, args.chief, args.tensorboard
    )
    file = args.file or Path(f"{script.stem}.compose.yml")
    file.write_text(compose_file(job))
    if args.action == "write":
        print(f"written: {file}")
        return 0
    compose = _compose_command()
    if compose is None:
        return _say(f"there is no docker compose on this machine; {file} is written")
    compose += ["--file", str(file)]
    code = subprocess.run([*compose, "up", *(["--detach"] if args.detach else [])], check=False).returncode
    if code or args.detach:
        return code
    # `up` ends with 0 whatever containers did; its --exit-code-from would end the job with the first that ends.
    return _exit_code_of(compose, "chief-0")


def _exit_code_of(compose: list[str], service: str) -> int:
    try:
        found = _ask([*compose, "ps", "--all", "--quiet", service])
        container = found.stdout.strip()
        if not container:
            return _say(f"there is no container of {service}")
        shown = _ask(["docker", "inspect", "--format={{.State.ExitCode}}", container])
    except subprocess.TimeoutExpired as error:
        return _say(f"docker does not say how {service} ended: {error}")
    return int(shown.stdout) if shown.returncode == 0 else _say(shown.stderr.strip())


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_SECS)


def _compose_command() -> list[str] | None:
    """Find docker compose: the plugin, or the older program of its own."""
    for command in (["docker", "compose"], ["docker-compose"]):
        try:
            if _ask([*command, "version"]).returncode == 0:
                return command
        except (FileNotFoundError, subprocess.TimeoutExpired):
            continue
    return None


def _say(text: str) -> int:
    print(f"globalstep compose: {text}", file=sys.stderr)
    return 2
