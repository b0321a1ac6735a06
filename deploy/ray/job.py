"""Ray job: PS tasks, workers and the chief are actors in a placement group; Ray restarts them.

Needs the extra "ray"; importing this module does not import it. Like everywhere here imports are absolute: `import ray`
is Ray.

Layer: deploy. `launch` uses one asyncio event loop of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from globalstep.deploy.launch.console import Console
from globalstep.deploy.launch.launcher import Launcher, Task
from globalstep.deploy.launch.live_runs import kept
from globalstep.deploy.launch.options import (
    add_restarts,
    add_script,
    add_security,
    add_tasks,
    environ_for_all,
    environ_of_task,
    with_run_token,
)
from globalstep.deploy.ray.member import MOVED, Member, TaskAddress
from globalstep.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError
from globalstep.security.credentials import RUN_TOKEN
from globalstep.worker.frameworks.training_model import require_extra

_LOOPBACK = "127.0.0.1"
#: Variables that are secrets.
_SECRETS = (RUN_TOKEN, "GLOBALSTEP_TOKEN")
_EXIT_KILLED = 137
#: For how long calls to an actor that has died may fail before it is taken for lost.
_TRIES, _TRY_SECS = 25, 0.2


@dataclass(frozen=True)
class RayEnd:
    """The end of a job.

    Attributes:
        code: 0, or the exit code of the first task that failed and might not be started again; 128 + n after signal n.
        codes: Task ("ps:0", "chief:0", ...) -> its last exit code; without those that were stopped before they had one.
        restarts: Task -> how often it was started again.
        output: Task -> its last lines.
    """

    code: int
    codes: Mapping[str, int]
    restarts: Mapping[str, int]
    output: Mapping[str, Sequence[str]]


def launch(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    ps: int = 1,
    workers: int = 1,
    chief: bool = False,
    cpus: float = 1,
    gpus: float = 0,
    strategy: str = "SPREAD",
    max_restarts: int = 10,
    grace_secs: float = 10.0,
    ready_secs: float = 60.0,
    environ: Mapping[str, str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    stream: TextIO | None = None,
    token: bool = True,
) -> RayEnd:
    """Run a training script to its end.

    A task whose actor or process dies is started again where it was. When Ray puts a PS task on another node, all tasks
    are asked to end, and the job begins again from its last checkpoint. Everything has ended when this returns, also by
    an exception. In the main thread SIGINT and SIGTERM drain the job; call it where no event loop runs.

    Args:
        script: The training script, run by every worker and the chief; on every node under the same path.
        args: Its arguments.
        ps: Number of PS tasks.
        workers: Number of workers; without `chief` the first of them is the chief.
        chief: Whether there is a chief besides the workers.
        cpus: CPUs that Ray is to reserve for each task.
        gpus: GPUs that it is to reserve for each worker and the chief.
        strategy: Of Ray's placement group: "SPREAD", "STRICT_SPREAD", "PACK" or "STRICT_PACK".
        max_restarts: How often each task is started again.
        grace_secs: How long tasks may take to end when asked, and PS tasks when the job is done.
        ready_secs: How long to wait for resources for all tasks.
        environ: What tasks find in their environment, besides that of their node and this process's GLOBALSTEP_*.
        log_dir: Folder for a file with each task's output, on this machine.
        stream: Where lines of all tasks go; default standard output.
        token: Whether a token is made for the run, where nothing else says who may take part in it. Tasks get it as an
            object of Ray's store, so that it is in no environment or argument that Ray's dashboard shows.

    Returns:
        Exit codes, restarts, and last lines.

    Raises:
        ImportError: If Ray is not installed.
        InvalidArgumentError: If there would be no PS task, no worker, or no script.
        ResourceExhaustedError: If Ray does not have the resources for all tasks in time.
        FailedPreconditionError: If a file of tokens has none for a task.
    """
    if ps < 1 or workers < (0 if chief else 1):
        raise InvalidArgumentError("At least one PS and one worker (or the chief) are needed.")
    if not os.path.isfile(script):
        raise InvalidArgumentError(f"There is no script {os.fspath(script)}.")
    ray = require_extra("ray", "globalstep.deploy.ray.job", "ray")
    others = [f"worker:{i}" for i in range(workers if chief else workers - 1)]
    names = [*(f"ps:{i}" for i in range(ps)), "chief:0", *others]
    own = {name: value for name, value in os.environ.items() if name.startswith("GLOBALSTEP_")}
    shown = {**own, "PYTHONUNBUFFERED": "1", "GLOBALSTEP_LAUNCH": "1", **(environ or {})}
    if token:
        shown = with_run_token(shown)
    tasks = [
        Task(name, ["-m", "globalstep.ps"] if name.startswith("ps:") else [os.fspath(script), *args],
             environ_of_task(shown, name.partition(":")[0]))
        for name in names
    ]  # fmt: skip
    console = Console(stream or sys.stdout, os.environ)
    with _ray_runs(ray), _actors(ray, names, cpus, gpus, strategy, max_restarts, ready_secs) as members:
        beginnings = 0
        while True:
            places = _places(ray, members, ready_secs)
            stay = _tell_cluster(tasks, places)
            logs = None if log_dir is None else Path(log_dir, *([f"again-{beginnings}"] if beginnings else []))
            launcher = _RayLauncher(ray, members, stay, tasks, console, max_restarts, grace_secs, logs, int(cpus) or 1)
            try:
                # As the tasks have them in TF_CONFIG.
                addresses = json.loads(tasks[0].environ["TF_CONFIG"])["cluster"]["ps"]
                with kept(addresses, shown, [os.fspath(script), *args]):
                    code = asyncio.run(launcher.run())
            finally:
                console.finish()
            if code or not launcher.moved:
                break
            if beginnings == max_restarts:
                console.say(f"globalstep ray: a task is on another node after {beginnings} new beginnings: giving up")
                code = _EXIT_KILLED
                break
            beginnings += 1
            console.say("globalstep ray: a task is on another node now: the job begins again")
    return RayEnd(
        code,
        dict(launcher.codes),
        {task.name: task.restarts for task in tasks},
        {task.name: list(task.tail) for task in tasks},
    )


def _tell_cluster(tasks: Sequence[Task], places: Mapping[str, TaskAddress]) -> dict[str, TaskAddress | None]:
    """Put TF_CONFIG into the tasks' environments; says which of them may be nowhere else.

    On one node they talk over loopback, where no certificates are asked for.
    """
    together = len({place.host for place in places.values()}) == 1
    cluster: dict[str, list[str]] = {}
    for name, place in places.items():
        cluster.setdefault(name.partition(":")[0], []).append(f"{_LOOPBACK if together else place.host}:{place.port}")
    for task in tasks:
        job, _, index = task.name.partition(":")
        task.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": job, "index": int(index)}})
    return {task.name: places[task.name] if task.is_ps or together else None for task in tasks}


@contextlib.contextmanager
def _ray_runs(ray: Any) -> Iterator[None]:
    """Connect to Ray (RAY_ADDRESS, or one of its own on this machine) unless the program has; ends what it began."""
    if ray.is_initialized():
        yield
        return
    # What tasks print comes another way, with their names.
    ray.init(log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _actors(
    ray: Any, names: Sequence[str], cpus: float, gpus: float, strategy: str, max_restarts: int, ready_secs: float
) -> Iterator[dict[str, Any]]:
    """Place an actor for each task, in a bundle of its own; they are gone at the end of the block."""
    require_extra("ray.util.scheduling_strategies", "globalstep.deploy.ray.job", "ray")
    bundles = [{"CPU": cpus, **({} if name.startswith("ps:") or not gpus else {"GPU": gpus})} for name in names]
    group = ray.util.placement_group(bundles, strategy=strategy)
    members: dict[str, Any] = {}
    try:
        if not group.wait(ready_secs):
            raise ResourceExhaustedError(
                f"Ray has no room for {len(names)} tasks ({strategy}: {bundles}) after {ready_secs:g} s; it has "
                f"{ray.cluster_resources()}, free: {ray.available_resources()}."
            )
        for i, (name, bundle) in enumerate(zip(names, bundles, strict=True)):
            placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, i)
            members[name] = (
                ray.remote(Member)
                .options(
                    num_cpus=cpus,
                    num_gpus=bundle.get("GPU", 0),
                    max_restarts=max_restarts,
                    # `signal` comes while `run` runs.
                    max_concurrency=4,
                    scheduling_strategy=placed,
                )
                .remote(ray.util.get_node_ip_address)
            )
        yield members
    finally:
        for member in members.values():
            ray.kill(member)
        ray.util.remove_placement_group(group)


def _places(ray: Any, members: Mapping[str, Any], ready_secs: float) -> dict[str, TaskAddress]:
    try:
        places = ray.get([member.place.remote() for member in members.values()], timeout=ready_secs)
    except ray.exceptions.GetTimeoutError:
        raise ResourceExhaustedError(
            f"Ray has not started {', '.join(members)} within {ready_secs:g} s, though it had room for them."
        ) from None
    return dict(zip(members, places, strict=True))


class _RayLauncher(Launcher):
    """A Launcher whose processes are run by actors.

    Args:
        ray: The module.
        members: Task -> its actor.
        stay: Task -> its place, None if it may be anywhere.
        tasks: As of Launcher; a command is without its interpreter.
        console: As of Launcher.
        max_restarts: As of Launcher.
        grace_secs: As of Launcher.
        log_dir: As of Launcher.
        threads: For linear algebra, of each task.
    """

    def __init__(
        self,
        ray: Any,
        members: Mapping[str, Any],
        stay: Mapping[str, TaskAddress | None],
        tasks: Sequence[Task],
        console: Console,
        max_restarts: int,
        grace_secs: float,
        log_dir: Path | None,
        threads: int,
    ) -> None:
        super().__init__(tasks, console, max_restarts, grace_secs, log_dir)
        self._ray = ray
        self._members = members
        self._stay = stay
        self._threads = threads
        # Ray shows neither what an object of its store is nor what a task's environment has in it.
        self._secrets = {
            task.name: ray.put({name: task.environ[name] for name in _SECRETS if name in task.environ})
            for task in tasks
        }
        self.moved = False
        self.codes: dict[str, int] = {}

    def _send(self, task: Task, number: int) -> None:
        member = self._members[task.name]
        if number == signal.SIGKILL:
            # Its process dies with it; so does the wait for one that Ray cannot place.
            self._ray.kill(member)
        else:
            # The answer is not waited for: an actor that has died has no process either.
            member.signal.remote(number)

    async def _run_once(self, task: Task, log: IO[str] | None) -> int:
        if self._stopping:
            return 0
        task.started_at = asyncio.get_running_loop().time()
        member = self._members[task.name]
        environ = {name: value for name, value in task.environ.items() if name not in _SECRETS}
        arguments = (task.command, environ, self._threads, os.getcwd(), self._stay[task.name], self._secrets[task.name])
        code = _EXIT_KILLED
        try:
            async for reference in member.run.options(num_returns="streaming").remote(*arguments):
                part = await reference
                if isinstance(part, int):
                    code = part
                else:
                    for text in part:
                        self._take_line(task, text, log)
        except self._ray.exceptions.RayActorError as error:
            why = " ".join(str(error).split())
            self._console.say(f"globalstep ray: the actor of {task.name} is gone: {type(error).__name__}: {why}")
            await self._until_back(member)
        if code == MOVED:
            self.moved = True
            self._end_early()
            return 0
        self.codes[task.name] = code
        return code

    async def _until_back(self, member: Any) -> None:
        """Wait until Ray has started an actor again, or has given up; calls wait for it, but fail at first."""
        for _ in range(_TRIES):
            if self._stopping:
                return
            try:
                await member.answer.remote()
                return
            except self._ray.exceptions.RayActorError:
                await asyncio.sleep(_TRY_SECS)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    add_tasks(parser)
    parser.add_argument("--cpus", type=float, default=1.0, metavar="C", help="CPUs of each task (default 1)")
    parser.add_argument("--gpus", type=float, default=0.0, metavar="G", help="GPUs of each worker (default 0)")
    parser.add_argument(
        "--strategy", choices=["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"], default="SPREAD",
        help="how Ray places the tasks (default SPREAD)",
    )  # fmt: skip
    add_restarts(parser)
    parser.add_argument("--insecure", action="store_true", help="no TLS between nodes, in a network that is trusted")
    add_security(parser)
    parser.add_argument("--log-dir", metavar="DIR", help="also write each task's output to a file, on this machine")
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; gives its exit code."""
    names = ("ps", "workers", "chief", "cpus", "gpus", "strategy", "max_restarts", "grace_secs", "log_dir")
    options = {name: getattr(args, name) for name in names}
    own = {name: value for name, value in os.environ.items() if name.startswith("GLOBALSTEP_")}
    try:
        environ = environ_for_all(args, own)
        if args.insecure:
            environ["GLOBALSTEP_INSECURE"] = "1"
        return launch(args.script, args.args, environ=environ, token=not args.no_token, **options).code
    except (ImportError, InvalidArgumentError, FailedPreconditionError, ResourceExhaustedError) as error:
        print(f"globalstep ray: {error}", file=sys.stderr)
        return 2
