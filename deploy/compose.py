"""`globalstep compose up`: writes a file for docker compose, and starts the job."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from globalstep.deploy.launch.options import add_evaluator, add_script, add_tasks, job_sizes, too_few, with_run_token
from globalstep.runtime.log_format import is_terminal

_POLL_SECS = 1.0
_LAST_LINES_SECS = 3.0
#: Services that end; others, which the user has added to the file, go on.
_TASK = re.compile(r"(ps|chief|worker|evaluator)-\d+")
#: The exit code of a process that was ended by SIGKILL.
_KILLED = 137
_SHOWN = '{{.Id}} {{index .Config.Labels "com.docker.compose.service"}} {{.State.Status}} {{.State.ExitCode}}'

#: A docker that says nothing for so long has hung.
_ANSWER_SECS = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("action", choices=["up", "write"], help="write the file and start the job, or only write it")
    add_tasks(parser)
    add_evaluator(parser)
    parser.add_argument("--file", type=Path, metavar="FILE", help="where to write it (default: NAME.compose.yml, here)")
    parser.add_argument(
        "--run", default="", metavar="NAME", dest="run_name",
        help="the run's name, and docker compose's for the project: by which two runs of one machine differ "
        "(default: FOLDER-SCRIPT, of the file's folder and the script)",
    )  # fmt: skip
    add_script(parser, "; its folder is mounted")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; gives its exit code: with `up`, that of the chief."""
    script = Path(args.script)
    if few := too_few(args):
        return _say(few)
    if not script.is_file():
        return _say(f"there is no script {args.script}")
    file = args.file or Path(f"{script.stem}.compose.yml")
    run = args.run_name or f"{file.resolve().parent.name}-{script.stem}"
    if args.run_name and project_name(run) != run:
        return _say(f"--run {run} must be of small letters, digits, - and _, and begin with a letter or a digit")
    project = project_name(run)
    file.write_text(compose_file(args, str(script.resolve().parent), project))
    if args.action == "write":
        print(f"written: {file}")
        return 0
    compose = _compose_command()
    if compose is None:
        return _say(f"there is no docker compose on this machine; {file} is written")
    compose += ["--project-name", project, "--file", str(file)]
    # Not `up` in the foreground: it says 0 whatever containers did; its --exit-code-from would end the job with the
    # first container that ends.
    environ = with_run_token(os.environ)
    code = subprocess.run([*compose, "up", "--detach"], env=environ, check=False).returncode
    return code or _follow(compose, file)


def _follow(compose: list[str], file: Path) -> int:
    """Show what the tasks print until all have ended; gives the chief's exit code."""
    logs = subprocess.Popen([*compose, "logs", "--follow", *([] if is_terminal(sys.stdout) else ["--no-color"])])
    try:
        ended = _until_all_have_ended(compose)
    except KeyboardInterrupt:
        subprocess.run([*compose, "stop"], check=False)
        return 130
    except subprocess.TimeoutExpired as error:
        return _say(f"docker does not say how the tasks are: {error}")
    finally:
        _let_end(logs)
    if "chief-0" not in ended:
        return _say(f"the containers of {file} are gone")
    return ended["chief-0"].exit_code


class _Container(NamedTuple):
    """A container's state by Docker; `exit_code` is 0 while it runs."""

    id: str
    service: str
    status: str
    exit_code: int


def _until_all_have_ended(compose: list[str]) -> dict[str, _Container]:
    """Wait for the end of all tasks, and start again what `docker kill` has ended: Docker itself does not.

    Returns:
        The containers by the names of their services; none when they were removed.
    """
    ids, pause = _ask([*compose, "ps", "--all", "--quiet"]).stdout.split(), threading.Event()
    while containers := _inspect(ids):
        tasks = [one for one in containers if _TASK.fullmatch(one.service)]
        # One that Docker is about to start again is "restarting".
        ended = [one for one in tasks if one.status in ("exited", "dead")]
        killed = [one for one in ended if one.exit_code == _KILLED]
        for one in killed:
            print(f"globalstep compose: {one.service} was killed, and starts again", file=sys.stderr)
            _ask(["docker", "start", one.id])
        if len(ended) == len(tasks) and not killed:
            return {one.service: one for one in containers}
        pause.wait(_POLL_SECS)
    return {}


def _inspect(ids: list[str]) -> list[_Container]:
    shown = _ask(["docker", "inspect", f"--format={_SHOWN}", *ids])
    lines = [line.split() for line in shown.stdout.splitlines() if line]
    return [_Container(id, service, status, int(code)) for id, service, status, code in lines]


def _let_end(logs: subprocess.Popen[bytes]) -> None:
    """Let the last lines be shown; it ends by itself unless a service of the user's goes on."""
    try:
        logs.wait(_LAST_LINES_SECS)
    except subprocess.TimeoutExpired:
        logs.kill()
        logs.wait()


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


_PORT = 2222
#: Of the TCP connections beside gRPC.
_TCP_PORT = 2223
#: Where the folder of the script is in a container, and the run's volume, which is the current folder too.
_SCRIPTS = "/app/job"
_RUN = "/run/globalstep"

_HEAD = """\
# Written by globalstep compose.
# Settings, here or in a file .env beside this one: GLOBALSTEP_IMAGE, GLOBALSTEP_SCRIPTS, GLOBALSTEP_RUN_TOKEN,
# GLOBALSTEP_RUN.
# Two runs on one machine need project names of their own: --project-name {project}
x-task: &task
  image: ${{GLOBALSTEP_IMAGE:-globalstep}}
  # A task that fails or is killed is started again; one that has ended with 0 is not.
  restart: on-failure
  stop_grace_period: 30s
  working_dir: {run}
  volumes:
    - run:{run}
    - ${{GLOBALSTEP_SCRIPTS:-{scripts}}}:{inside}:ro
services:
"""
_SERVICE = """\
  {name}:
    <<: *task
    command: {command}
    environment:
      # The network below belongs to this job alone.
      GLOBALSTEP_INSECURE: "1"
      # Made by `globalstep compose up`, anew each time; without it, every process in that network may call.
      GLOBALSTEP_RUN_TOKEN: "${{GLOBALSTEP_RUN_TOKEN:-}}"
      # The run's name: a task of another run learns that these are not its PS tasks.
      GLOBALSTEP_RUN: "${{GLOBALSTEP_RUN:-{run}}}"
      TF_CONFIG: '{config}'
"""
_TAIL = """\
volumes:
  run:
"""


def compose_file(args: argparse.Namespace, scripts: str, project: str) -> str:
    """Write the file: a service for each task, so that each has a name that others find it by.

    Args:
        args: The subcommand's.
        scripts: Folder of the script on this machine, which containers see as a volume.
        project: The run's name: containers, network and volume bear it, so that no other run's are met.
    """
    sizes = {"ps": args.ps, **job_sizes(args), **({"evaluator": 1} if args.evaluator else {})}
    cluster = {name: [f"{name}-{i}:{_PORT}" for i in range(count)] for name, count in sizes.items()}
    text = _HEAD.format(run=_RUN, scripts=scripts, inside=_SCRIPTS, project=project)
    for name, count in sizes.items():
        command = (
            ["python", "-m", "globalstep.ps", f"--tcp-port={_TCP_PORT}"]
            if name == "ps"
            else ["python", f"{_SCRIPTS}/{Path(args.script).name}", *args.args]
        )
        for index in range(count):
            config = json.dumps({"cluster": cluster, "task": {"type": name, "index": index}})
            # Compose would take what follows a single dollar sign for one of its settings.
            shown = json.dumps(command).replace("$", "$$")
            text += _SERVICE.format(name=f"{name}-{index}", command=shown, config=config, run=project)
    return text + _TAIL


def project_name(run: str) -> str:
    """Give a run's name as docker compose takes it for a project: small letters, digits, - and _.

    >>> project_name("My Run.7")
    'myrun7'
    """
    return re.sub(r"[^-_a-z0-9]", "", run.lower()).lstrip("-_") or "globalstep"
