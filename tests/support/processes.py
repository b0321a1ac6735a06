"""Real processes for tests: started together, waited for with a limit, killed at the end whatever happens.

And links to them, which tests cut without a word, as a switch does that fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.runtime.process_env import tuned

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def free_addresses(count: int) -> list[str]:
    """Addresses that were free a moment ago: all are held at once, so that none comes twice."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def tasks_marked(name: str, value: str) -> dict[str, int]:
    """Give the pids of tasks whose environment has `name` at `value`: "ps:0" -> pid."""
    tasks = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "environ").read_bytes().decode(errors="replace")
            environ = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
            if environ.get(name) == value and "TF_CONFIG" in environ:
                task = json.loads(environ["TF_CONFIG"])["task"]
                tasks[f"{task['type']}:{task['index']}"] = int(folder.name)
    return tasks


def until(reached: Callable[[], bool], what: str, timeout_secs: float = 60.0) -> None:
    """Wait until something is so, for what no process of ours prints; fails when it takes longer."""
    deadline = SYSTEM_CLOCK.monotonic() + timeout_secs
    pause = threading.Event()
    while not reached():
        assert SYSTEM_CLOCK.monotonic() < deadline, f"not within {timeout_secs} s: {what}"
        pause.wait(0.1)


class Processes:
    """Processes by name; use it in a `with` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(
        self, name: str, *command: object, env: dict[str, str] | None = None, by: Iterable[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start `python *command`, by a program that becomes it; its output goes to a file of its name."""
        with (self._folder / f"{name}.log").open("ab") as log:
            environ = {**tuned(os.environ, threads=1), "PYTHONUNBUFFERED": "1"}
            environ.pop("TF_CONFIG", None)
            process = subprocess.Popen(
                [*by, sys.executable, *map(str, command)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environ, **(env or {})},
                cwd=self._folder,
            )
        self._running[name] = process
        return process

    def pid(self, name: str) -> int:
        """The process id of a process."""
        return self._running[name].pid

    def code(self, name: str) -> int | None:
        """The exit code of a process that has ended."""
        return self._running[name].poll()

    def output(self, name: str) -> str:
        """What a process has printed so far."""
        return (self._folder / f"{name}.log").read_text()

    def until(self, name: str, pattern: str, timeout_secs: float = 60.0) -> None:
        """Wait until a process has printed what matches; fails when it ends first, or takes longer."""
        self.until_true(
            name, lambda: re.search(pattern, self.output(name), re.MULTILINE) is not None, timeout_secs, repr(pattern)
        )

    def until_true(self, name: str, reached: Callable[[], bool], timeout_secs: float = 60.0, what: str = "") -> None:
        """Wait until a process has brought something about; fails when it ends first, or takes longer."""
        deadline = SYSTEM_CLOCK.monotonic() + timeout_secs
        descriptor = os.pidfd_open(self._running[name].pid)
        try:
            while True:
                ended = select.select([descriptor], [], [], 0.02)[0]
                if reached():
                    return
                if ended or SYSTEM_CLOCK.monotonic() > deadline:
                    raise AssertionError(f"{name} does not come to {what}; it printed:\n{self.output(name)}")
        finally:
            os.close(descriptor)

    def pause(self, name: str, secs: float) -> None:
        """Let time pass, or less if a process ends."""
        if self.code(name) is not None:
            return
        descriptor = os.pidfd_open(self._running[name].pid)
        try:
            select.select([descriptor], [], [], secs)
        finally:
            os.close(descriptor)

    def until_ended(self, names: Iterable[str], timeout_secs: float = 60.0) -> None:
        """Wait for some of them; one that does not end is named with its output."""
        self._wait({name: self._running[name] for name in names}, timeout_secs)

    def wait(self, timeout_secs: float = 60.0) -> dict[str, int]:
        """Wait for all; gives their exit codes. One that does not end is named with its output."""
        return self._wait(self._running, timeout_secs)

    def _wait(self, running: Mapping[str, subprocess.Popen[bytes]], timeout_secs: float) -> dict[str, int]:
        codes = {}
        for name, process in running.items():
            try:
                codes[name] = process.wait(timeout_secs)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} does not end; it printed:\n{self.output(name)}") from None
        return codes


class Link:
    """A TCP proxy that can be told to carry nothing any more, or no replies; new connections hang as well.

    Use it in a `with` block, or close it.

    Args:
        address: Where it leads to; nobody needs to listen there yet.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        #: Whether something was to be carried that the cut held up.
        self.has_held = threading.Event()
        self._carries = threading.Event()
        self._carries.set()
        self._carries_requests = False
        self._ended = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="link")]
        self._threads[0].start()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def cut(self, replies_only: bool = False) -> None:
        """Carry nothing more, or what clients send only."""
        self.has_held.clear()
        self._carries_requests = replies_only
        self._carries.clear()

    def mend(self) -> None:
        """Carry what comes by new connections; the old ones are lost."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._carries.set()

    def close(self) -> None:
        """End all connections, and the threads."""
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self.mend()
        for thread in self._threads:
            thread.join(5)
        for one in (self._listening, *self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                pumped = source, target, source is near
                self._threads.append(threading.Thread(target=self._pump, args=pumped, name="link-pump"))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket, requests: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                while not (self._carries.is_set() or self._ended.is_set() or (requests and self._carries_requests)):
                    self.has_held.set()
                    self._carries.wait(0.1)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
