"""The PS task of a cluster that names none: a process beside the first of the other tasks, at that task's address.

In TensorFlow every server holds Variables, so that peers can share those of one of them without any job "ps". Here the
server of one task starts a PS process, which serves all of them; it ends with the job.

Layer: deploy. Threads: the caller's.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading

from globalstep.cluster.cluster import CHIEF_JOBS, ClusterSpec
from globalstep.errors import AlreadyExistsError
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.runtime.process_env import tuned
from globalstep.worker.client.leaving import close_clients

__all__ = ["HostedPS", "host_of"]

_log = logging.getLogger("globalstep")

_SAY_SECS = 30.0
_START_SECS = 30.0
#: How long a PS task that is asked to end may take.
_GRACE_SECS = 15.0


def host_of(cluster: ClusterSpec) -> tuple[str, int]:
    """Give the job and index of the task that holds the Variables of a cluster without a job "ps".

    The chief's; without one the first worker; else the first task of the first job.

    Raises:
        ValueError: If the cluster has no tasks.

    >>> host_of(ClusterSpec({"local": ["a:1", "b:1"]}))
    ('local', 0)
    """
    jobs = [job for job in (*CHIEF_JOBS, "worker", *cluster.jobs) if job in cluster.jobs and cluster.task_indices(job)]
    if not jobs:
        raise ValueError("The cluster has no tasks.")
    return jobs[0], cluster.task_indices(jobs[0])[0]


class HostedPS:
    """A PS process that serves on behalf of this one.

    It ends when the job is done and everybody has left; when this process fails; and with this process when that is
    killed. This process stays, at its normal end, until the others have left.

    Args:
        address: "host:port".
        task: Name of this task, for messages.

    Raises:
        AlreadyExistsError: If it cannot serve there.

    Attributes:
        address: Where it really serves.
    """

    def __init__(self, address: str, task: str) -> None:
        self._task = task
        main = threading.current_thread() is threading.main_thread()
        guard = [setpriv, "--pdeathsig", "TERM"] if main and (setpriv := shutil.which("setpriv")) else []
        command = [
            *guard,
            sys.executable,
            "-m",
            "globalstep.ps",
            "--bind",
            address,
            "--metrics-port",
            "",
            "--log-level",
        ]
        environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        self._process = subprocess.Popen(
            [*command, "WARNING"], stdout=subprocess.PIPE, env=tuned(environ), text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._process.stdout.close()
        if not line.startswith("serving on "):
            code = self._process.wait(_START_SECS)
            raise AlreadyExistsError(
                f"{task} cannot serve the cluster's Variables on {address}: its PS process ended with code {code}, and "
                "what it said stands above. Most often another process has that address."
            )
        self.address = line.removeprefix("serving on ").strip()
        atexit.register(self._at_exit)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def join(self) -> int:
        """Wait until it has ended; gives its exit code."""
        since = said = SYSTEM_CLOCK.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(1.0)
            now = SYSTEM_CLOCK.monotonic()
            if now - said >= _SAY_SECS:
                said = now
                _log.info("Waiting for %.0f s now for the others to leave: %s holds their Variables", now - since,
                          self._task)  # fmt: skip

    def terminate(self) -> None:
        """Ask it to end; `join` tells when it has."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it."""
        atexit.unregister(self._at_exit)
        self.terminate()
        try:
            self._process.wait(_GRACE_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _at_exit(self) -> None:
        """Let the others come to their end, unless this process failed."""
        if self._process.poll() is not None:
            return
        # Set by an uncaught exception: an engine is to see the failure now.
        if hasattr(sys, "last_type"):
            self.stop()
            return
        close_clients()
        try:
            self.join()
        except KeyboardInterrupt:
            self.stop()
