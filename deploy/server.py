"""`gs.train.Server`: a task of a ClusterSpec in this process, as TensorFlow 1.x programs start it.

A "ps" task serves here. A worker or chief has nothing to serve: sessions talk to the PS tasks directly, so
its server only makes its target mean them. In a cluster without a job "ps" one of its tasks has a PS process beside it
(hosted_ps.py), which holds the Variables of all. `join` ends the process, as TensorFlow's never returns.

Layer: deploy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from globalstep.cluster.cluster import ClusterSpec, ServerDef, from_tf_config, is_address, session_tasks
from globalstep.deploy.launch.hosted_ps import HostedPS, host_of
from globalstep.deploy.ps_program import PSProgram, code_of
from globalstep.deploy.worker_join import wait_for_the_end
from globalstep.errors import InvalidArgumentError
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.members.ending import Patience
from globalstep.ps.server import PSOptions, PSServer, tcp_port_of
from globalstep.runtime.log_format import write_to_stderr
from globalstep.runtime.metrics_port import port_of_environ
from globalstep.runtime.process_env import raise_malloc_thresholds
from globalstep.runtime.streams import end_process
from globalstep.wire.transports import register_target

__all__ = ["Server"]

_log = logging.getLogger(__name__)

#: What a shell gives for a process that Ctrl-C has ended.
EXIT_INTERRUPTED = 128 + signal.SIGINT
#: How long a program that was asked to end may go on after `join`.
_CAUGHT_SECS = 5.0


class Server:
    """A task of a cluster; TensorFlow's arguments.

    Args:
        server_or_cluster_def: ClusterSpec, or what makes one, or a ServerDef. None takes everything from TF_CONFIG.
        job_name: "ps", "worker" or "chief". Default: the only job of the cluster.
        task_index: Number in the job. Default: 0 if the job has one task.
        protocol: "grpc"; TensorFlow's "grpc+verbs" and the like, for special networks, are taken for it and warned of.
        config: Accepted; has no effect.
        start: Begin to serve at once.

    Raises:
        ValueError: If the cluster has no such task.
        InvalidArgumentError: If an address of the cluster is not "host:port".
        AlreadyExistsError: If the address is taken.
        FailedPreconditionError: If a "ps" task would serve other machines without TLS; see docs/security.md.
    """

    def __init__(
        self,
        server_or_cluster_def: Any = None,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        write_to_stderr()
        if protocol not in (None, "grpc"):
            if not str(protocol).startswith("grpc+"):
                raise InvalidArgumentError(f"Protocol {protocol!r} is not supported; 'grpc' is.")
            _log.warning("Protocol %r is not here; 'grpc' is taken, by which tasks connect as they can.", protocol)
        if server_or_cluster_def is None:
            mine = from_tf_config()
            cluster, job_name = mine.cluster, job_name or mine.job
            task_index = mine.index if task_index is None else task_index
        elif isinstance(server_or_cluster_def, ServerDef):
            cluster = ClusterSpec(server_or_cluster_def.cluster)
            job_name = job_name or server_or_cluster_def.job_name or None
            task_index = server_or_cluster_def.task_index if task_index is None else task_index
        else:
            cluster = ClusterSpec(server_or_cluster_def)
        if job_name is None:
            if len(cluster.jobs) != 1:
                raise ValueError(f"Must specify an explicit job_name; the cluster has jobs {cluster.jobs}.")
            job_name = cluster.jobs[0]
        if task_index is None:
            if len(cluster.task_indices(job_name)) != 1:
                raise ValueError(f"Must specify an explicit task_index; job {job_name!r} has several tasks.")
            task_index = cluster.task_indices(job_name)[0]
        self._task = (cluster, job_name, task_index)
        self._address = cluster.task_address(job_name, task_index)
        _check_addresses(cluster, self._address)
        self._ps: PSServer | None = None
        # Whether this task has the PS process of a cluster without a job "ps", and that.
        self._hosts = False
        self._hosted: HostedPS | None = None
        # What a PS task's own program does instead of `join`.
        self._program: PSProgram | None = None
        # The exit code of a process whose `join` has come to its end.
        self._exit_code: int | None = None
        if job_name == "ps":
            raise_malloc_thresholds()
            options = PSOptions(
                bind=self._address,
                security=SecurityOptions.from_environ(os.environ),
                metrics_port=port_of_environ(),
                patience=Patience.from_environ(os.environ),
                tcp_port=tcp_port_of(os.environ),
            )
            self._ps = PSServer(options)
            self._address = self._ps.address
            addresses = list(cluster.job_tasks("ps"))
            addresses[cluster.task_indices("ps").index(task_index)] = self._address
        elif cluster.jobs and "ps" in cluster.jobs:
            addresses = list(cluster.job_tasks("ps"))
        else:
            host = host_of(cluster)
            self._hosts = host == (job_name, task_index)
            addresses = [cluster.task_address(*host)]
        self._known = [address for address in addresses if address]
        self._register()
        if start:
            self.start()

    def _register(self) -> None:
        """Make the target mean the PS tasks."""
        cluster, job, index = self._task
        task = f"/job:{job}/task:{index}"
        alone = self._ps is not None and len(self._known) == 1
        workers = session_tasks(cluster)
        program = None
        if self._ps is not None and workers:
            program = self._program = PSProgram(self._ps, self._task[2], self._end)
        register_target(
            self.target,
            self._known,
            task=task,
            session_tasks=workers,
            in_process=alone,
            program=program,
        )

    @property
    def target(self) -> str:
        """What to give a session as its master."""
        if self._exit_code is not None:
            # An `except:` around join() took its SystemExit: a PS task is no worker, whatever stands after it.
            sys.exit(self._exit_code)
        return f"grpc://{self._address}"

    @property
    def server_def(self) -> ServerDef:
        """The cluster, and which of its tasks this is."""
        cluster, job, index = self._task
        return ServerDef(cluster.as_cluster_def(), job, index)

    def start(self) -> None:
        """Begin to serve, if this is a PS task, or the task that has one beside it."""
        if self._ps is not None:
            self._ps.start()
        if self._hosts and self._hosted is None:
            _, job, index = self._task
            self._hosted = HostedPS(self._address, f"/job:{job}/task:{index}")
            self._address = self._hosted.address
            self._known = [self._address]
            self._register()
            _log.info(
                "The cluster has no job 'ps': process %d, beside /job:%s/task:%d, holds its Variables.",
                self._hosted.pid, job, index,
            )  # fmt: skip

    def join(self) -> NoReturn:
        """Serve until the job is done and every client has left; then end the process.

        TensorFlow's never returns, and programs rely on it: what stands after it is a worker's. So this one never
        returns to its caller either. It raises SystemExit, with code 0, when the job is done: the interpreter ends
        as it always does, after `finally` blocks, atexit functions and threads that are no daemons; in another
        thread than the main one it ends that thread. A SIGTERM before the job is done ends the process with code
        143, so that an engine starts it again, and Ctrl-C with 130; a program that catches all exceptions, and goes on
        for 5 s, is ended then. A worker's server has nothing to serve; it waits, too, until the job is done.

        Raises:
            SystemExit: When there is nothing left to wait for.
        """
        try:
            self._join()
        except KeyboardInterrupt:
            self._exit_code = EXIT_INTERRUPTED
            _end_in_any_case(EXIT_INTERRUPTED)
            raise

    def _join(self) -> NoReturn:
        if self._exit_code is not None:
            sys.exit(self._exit_code)
        if self._hosted is not None:
            with _terminated(self._hosted.terminate) as terminated:
                code = self._hosted.join()
            self._end(code, bool(terminated))
        if self._ps is None:
            _, job, index = self._task
            _log.info(
                "Server.join(): /job:%s/task:%d serves nothing; this process ends when the job is done.", job, index
            )
            wait_for_the_end(f"grpc://{self._address}")
            self._end(0)
        if self._program is not None:
            self._program.joined = True
        level = logging.getLogger("globalstep").level
        if level == logging.NOTSET:
            # Such a process has nothing else to say, and the user who started it by hand wants to know that it runs.
            logging.getLogger("globalstep").setLevel(logging.INFO)
        try:
            _log.info("/job:ps/task:%d serves on %s until the job is done", self._task[2], self._ps.address)
            with _terminated(self._ps.stop) as terminated:
                self._ps.join()
        finally:
            logging.getLogger("globalstep").setLevel(level)
        self._end(code_of(self._ps, bool(terminated)), bool(terminated))

    def _end(self, code: int, terminated: bool = False) -> NoReturn:
        self._exit_code = code
        if terminated:
            _end_in_any_case(code)
        sys.exit(code)

    def stop(self) -> None:
        """Stop serving."""
        if self._program is not None:
            self._program.joined = True
        if self._ps is not None:
            self._ps.close()
        if self._hosted is not None:
            self._hosted.stop()

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """Make a cluster of one PS task on a free port of this machine, and serve it here."""
        return Server({"ps": ["127.0.0.1:0"]}, job_name="ps", task_index=0, config=config, start=start)


def _check_addresses(cluster: ClusterSpec, own: str) -> None:
    """Refuse a cluster with an address that is none; first of all this task's own."""
    if own and not is_address(own):
        raise InvalidArgumentError(
            f'Could not parse port for local server from "{own}": an address is "host:port", with a port up to 65535, '
            f'such as "{own.partition(":")[0] or "localhost"}:2222".'
        )
    for job in cluster.jobs:
        for index in cluster.task_indices(job):
            address = cluster.task_address(job, index)
            if address and not is_address(address):
                raise InvalidArgumentError(
                    f'Could not interpret "{address}" as a host-port pair: it is the address of '
                    f'/job:{job}/task:{index}, and an address is "host:port", with a port up to 65535.'
                )


def _end_in_any_case(code: int) -> None:
    """End a process that was asked to, where an `except:` of its program takes the exception that ends it.

    TensorFlow's process is gone at the signal. This one may do what its `finally` blocks say; one that still runs its
    main thread after a while has not understood.
    """
    threading.Thread(target=_outlast, args=(code,), name="server-end", daemon=True).start()


def _outlast(code: int) -> None:
    main = threading.main_thread()
    main.join(_CAUGHT_SECS)
    if main.is_alive():
        _log.warning(
            "The program caught what server.join() ends it by, and goes on: this task ends with code %d.", code
        )
        end_process(code)


@contextlib.contextmanager
def _terminated(ask: Callable[[], None]) -> Iterator[list[int]]:
    """Call `ask` when a SIGTERM comes in the main thread; gives a list that then has its number."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def on_term(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        ask()

    before = signal.signal(signal.SIGTERM, on_term)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
