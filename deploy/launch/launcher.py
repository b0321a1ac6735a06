"""Launcher of a cluster's processes on this machine: output, signals, restarts, and the end of the job.

Layer: deploy. One asyncio event loop, no threads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from globalstep.cluster.run_identity import TAKE_OVER_VARIABLE
from globalstep.deploy.launch.console import Console
from globalstep.deploy.status.view import duration
from globalstep.runtime.log_format import CONCLUSION_MARK, PROGRESS_MARK
from globalstep.worker.client.heartbeat import LEASE_SECS

_TAIL_LINES = 20
#: How often a launcher looks whether those that are left wait in vain.
_LOOK_SECS = 0.5


@dataclass
class Task:
    """One process of the cluster: what to start, and how it fares.

    Attributes:
        name: "ps:0", "chief:0", "worker:1", ...
        command: Program and arguments.
        environ: Its whole environment.
        restarts: How often it was started again.
        started_at: When it was last started, by the event loop's time.
        ended_at: When it last ended.
        tail: Its last lines of output.
        process: The process, once started.
        is_chief: Whether it is the chief, whose progress is shown.
    """

    name: str
    command: list[str]
    #: With its token: no log line has it.
    environ: dict[str, str] = field(repr=False)
    restarts: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    process: asyncio.subprocess.Process | None = None
    is_chief: bool = False

    def __post_init__(self) -> None:
        self.is_chief = self.is_chief or self.name.startswith("chief:")

    @property
    def is_ps(self) -> bool:
        """Whether it is a parameter server."""
        return self.name.startswith("ps:")

    def signal(self, number: int) -> None:
        """Send a signal to the process, SIGKILL to all that it started too; nothing happens when it has ended.

        What it started, a DataLoader's processes say, is what its last step needs: it ends that itself.
        """
        if self.process is not None and self.process.returncode is None:
            send = os.killpg if number == signal.SIGKILL else os.kill
            with contextlib.suppress(ProcessLookupError):
                send(self.process.pid, number)


class Launcher:
    """Starts tasks, shows their output, and ends with the job.

    Args:
        tasks: The tasks.
        console: Where their output goes.
        max_restarts: How often each of them is started again after a failure.
        grace_secs: Seconds to wait for a process that was asked to end, and for the PS after the workers.
        log_dir: Folder for a file with each task's output; None for none.
        failover: Whether the chief and workers go on without one of them that failed and is not started again.

    Attributes:
        conclusion: Where the chief's run has ended, as it said last; None before it did.
        failed: How the task that the job ended for has ended: "worker:1 failed with exit code 3"; "" for none.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        console: Console,
        max_restarts: int = 0,
        grace_secs: float = 10.0,
        log_dir: Path | None = None,
        failover: bool = False,
    ) -> None:
        self._failover = failover
        self._tasks = list(tasks)
        self._console = console
        self._max_restarts = max_restarts
        self._grace_secs = grace_secs
        self._log_dir = log_dir
        self.conclusion: Conclusion | None = None
        self.failed = ""
        self._signal = 0
        self._stopping = False
        # Set when a signal asks for the end.
        self._asked = asyncio.Event()
        # When the chief or a PS ended with 0, and when there was no PS any more that had been there until then, by the
        # event loop's time.
        self._over_at = self._ps_ended_at = math.inf

    async def run(self) -> int:
        """Run all tasks to their end.

        Returns:
            0 when the chief and all workers ended with 0 and no PS failed before; the exit code of the
            first task that failed; or 128 + n after signal n.
        """
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._on_signal, number)
        running = {asyncio.create_task(self._supervise(task)): task for task in self._tasks}
        job = asyncio.create_task(self._until_done(running))
        asked = asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait([job, asked], return_when=asyncio.FIRST_COMPLETED)
            code = job.result() if job.done() else 0
        finally:
            job.cancel()
            asked.cancel()
            await self._stop(running)
        return 128 + self._signal if self._signal else code

    def _on_signal(self, number: int) -> None:
        # SIGTERM for Ctrl-C too: sessions hand over their work on it. The second signal means that the user's patience
        # has ended.
        passed_on = signal.SIGKILL if self._signal else signal.SIGTERM
        if not self._signal:
            how = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
            self._console.say(
                f"globalstep launch: {how}: the job stops; each task is sent SIGTERM, saves what is its to save and "
                "ends. Once more ends all at once, without saving"
            )
        self._signal = self._signal or number
        self._stopping = True
        self._asked.set()
        for task in self._tasks:
            self._send(task, passed_on)

    def _send(self, task: Task, number: int) -> None:
        """Send a signal to a task; see Task.signal."""
        task.signal(number)

    def _end_early(self) -> None:
        """Ask for the end of all tasks, without a signal."""
        self._stopping = True
        self._asked.set()

    async def _until_done(self, running: Mapping[asyncio.Task[int], Task]) -> int:
        """Wait for a failure, a signal, or the end of the job; gives the exit code."""
        pending, loop = set(running), asyncio.get_running_loop()
        since = math.inf
        while pending:
            # Tasks that are started again end no wait.
            done, pending = await asyncio.wait(pending, timeout=_LOOK_SECS, return_when=asyncio.FIRST_COMPLETED)
            now = loop.time()
            if now - since >= self._grace_secs and not done:
                names = ", ".join(sorted(running[future].name for future in pending))
                self._console.say(f"globalstep launch: the job is done; stopping {names}, which did not end")
                return 0
            for future in sorted(done, key=lambda one: running[one].ended_at):
                task = running[future]
                if (code := future.result()) and not self._stopping:
                    self._report(task, code)
                    if not self._failover or task.is_ps or all(running[one].is_ps for one in pending):
                        self.failed = f"{task.name} {_how_it_ended(code)}"
                        return code
                if (task.is_chief or task.is_ps) and not code:
                    self._over_at = min(self._over_at, task.ended_at)
            if self._stopping:
                return 0
            left = [running[future] for future in pending]
            if all(self._came_after(task, self._over_at) for task in left if task.is_ps):
                self._ps_ended_at = min(self._ps_ended_at, now)
            if not all(task.is_ps or self._came_after(task, self._ps_ended_at) for task in left):
                since = math.inf
            elif done or since == math.inf:
                since = now
        return 0

    def _came_after(self, task: Task, end: float) -> bool:
        """Whether a task was started again so late that it may have missed the end of the job.

        A PS that comes back after the end holds nothing, and a chief or worker may wait in vain for it. The other PS
        tasks may have ended later than the job, since they wait for the lease of a task that has died.
        """
        return bool(task.restarts) and task.started_at > end - self._grace_secs - LEASE_SECS

    async def _stop(self, running: Mapping[asyncio.Task[int], Task]) -> None:
        """End whatever still runs: SIGTERM (unless a signal was passed on), then SIGKILL."""
        self._stopping = True
        pending = {future for future in running if not future.done()}
        if not self._signal:
            for future in pending:
                self._send(running[future], signal.SIGTERM)
        if pending:
            _, pending = await asyncio.wait(pending, timeout=self._grace_secs)
        for future in pending:
            self._console.say(f"globalstep launch: killing {running[future].name}, which did not end when asked")
            self._send(running[future], signal.SIGKILL)
        if pending:
            await asyncio.wait(pending)

    async def _supervise(self, task: Task) -> int:
        """Run a task, again if it fails and may be; gives its last exit code."""
        with contextlib.ExitStack() as stack:
            log: IO[str] | None = None
            if self._log_dir is not None:
                self._log_dir.mkdir(parents=True, exist_ok=True)
                path = self._log_dir / log_name(task.name)
                log = stack.enter_context(path.open("w", encoding="utf-8"))
            while True:
                code = await self._run_once(task, log)
                task.ended_at = asyncio.get_running_loop().time()
                if code == 0 or self._stopping or task.restarts >= self._max_restarts:
                    return code
                task.restarts += 1
                # It has what it took over; who acts as chief since it failed is to keep that.
                task.environ.pop(TAKE_OVER_VARIABLE, None)
                self._console.say(
                    f"globalstep launch: {task.name} {_how_it_ended(code)}; "
                    f"restart {task.restarts} of {self._max_restarts}"
                )

    async def _run_once(self, task: Task, log: IO[str] | None) -> int:
        if self._stopping:
            return 0
        task.started_at = asyncio.get_running_loop().time()
        reader, transport, write_end = await _pipe()
        try:
            task.process = await asyncio.create_subprocess_exec(
                *task.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                env=task.environ,
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        if self._stopping:
            # It was not there yet when the others were asked to end.
            task.signal(signal.SIGTERM)
        output = asyncio.create_task(self._show(task, reader, log))
        code = await task.process.wait()
        # What the task left running in its group goes with it, and so does its hold on the pipe.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(task.process.pid, signal.SIGKILL)
        await asyncio.wait([output], timeout=self._grace_secs)
        output.cancel()
        transport.close()
        return 128 - code if code < 0 else code

    async def _show(self, task: Task, stream: asyncio.StreamReader, log: IO[str] | None) -> None:
        async for text in _lines(stream):
            self._take_line(task, text, log)

    def _take_line(self, task: Task, text: str, log: IO[str] | None) -> None:
        """Show a line of a task's output."""
        if text.startswith(PROGRESS_MARK):
            if task.is_chief:
                self._console.line(task.name, text)
            return
        if text.startswith(CONCLUSION_MARK):
            self.conclusion = read_conclusion(text.removeprefix(CONCLUSION_MARK)) or self.conclusion
            return
        task.tail.append(text)
        self._console.line(task.name, text)
        if log is not None:
            log.write(f"{self._console.stamp()}{text}\n")
            log.flush()

    def _report(self, task: Task, code: int) -> None:
        none = "" if task.tail else " none"
        self._console.say(f"globalstep launch: {task.name} {_how_it_ended(code)}; its last lines:{none}", task.tail)
        if not self._max_restarts and (task.is_ps or code > 128):
            training = ", and training goes on from the last checkpoint" if task.is_ps else ""
            self._console.say(
                f"globalstep launch: the job ends for want of {task.name}; with --max-restarts=K it is started again, "
                f"up to K times{training} (docs/recovery.md)"
            )


async def _pipe() -> tuple[asyncio.StreamReader, asyncio.BaseTransport, int]:
    """Make a pipe; its read end belongs to the event loop, its write end is a plain descriptor.

    asyncio's own PIPE would make the end of the process wait for everybody who holds the pipe.
    """
    reader = asyncio.StreamReader()
    read_end, write_end = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
    )
    return reader, transport, write_end


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Read lines of any length; of a line redrawn with carriage returns, its last form."""
    rest = b""
    while chunk := await stream.read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _how_it_ended(code: int) -> str:
    if code > 128 and code - 128 in set(signal.Signals):
        return f"was ended by {signal.Signals(code - 128).name} (exit code {code})"
    return f"failed with exit code {code}"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The end of a chief's run.

    Attributes:
        step: The global step.
        steps: How many of them were made since the chief began, by all workers.
        secs: Since then.
        checkpoint: The newest one; "" for none.
    """

    step: int
    steps: int
    secs: float
    checkpoint: str


def read_conclusion(text: str) -> Conclusion | None:
    """Read a chief's line about its end; None for any other line: a program may print anything.

    >>> read_conclusion('{"step": 30, "steps": 20, "secs": 4.0, "checkpoint": ""}')
    Conclusion(step=30, steps=20, secs=4.0, checkpoint='')
    """
    try:
        fields = json.loads(text)
        values = (int(fields["step"]), int(fields["steps"]), float(fields["secs"]), str(fields["checkpoint"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return Conclusion(*values)


def summary(
    tasks: Sequence[Task], code: int, secs: float, conclusion: Conclusion | None, log_dir: Path | None, failed: str = ""
) -> tuple[str, list[str]]:
    """Put the end of a job into words."""
    below = [f"exit codes: {', '.join(f'{task.name} {_code(task)}' for task in tasks)}"]
    if again := [f"{task.name} {task.restarts}" for task in tasks if task.restarts]:
        below.append(f"restarts: {', '.join(again)}")
    if conclusion is not None:
        rate = f", {conclusion.steps / conclusion.secs:.1f} steps/s" if conclusion.secs > 0 else ""
        below.append(f"global_step {conclusion.step:,}: {conclusion.steps:,} steps in {conclusion.secs:.1f} s{rate}")
        below.append(f"checkpoint: {conclusion.checkpoint or 'none'}")
    if log_dir is not None:
        below.append(f"logs: {log_dir}/ ({', '.join(log_name(task.name) for task in tasks)})")
    reason = f": {failed}" if failed else ""
    return f"globalstep launch: ended with code {code} after {duration(secs)}{reason}", below


def log_name(task: str) -> str:
    """Give the name of a task's file in the folder of logs.

    >>> log_name("ps:0")
    'ps-0.log'
    """
    return f"{task.replace(':', '-')}.log"


def _code(task: Task) -> str:
    code = None if task.process is None else task.process.returncode
    return "not started" if code is None else str(128 - code if code < 0 else code)
