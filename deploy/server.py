"""`gs.train.Server`: a task of a ClusterSpec in this process, as TensorFlow 1.x programs start it.

A "ps" task serves here. A worker or chief has nothing to serve: sessions talk to the PS tasks directly, so
its server only makes its target mean them. In a cluster without a job "ps" the server of one of its tasks serves, and
holds the Variables of all. `join` ends the process, as TensorFlow's never returns.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from globalstep.cluster.cluster import CHIEF_JOBS, ClusterSpec, ServerDef, from_tf_config, is_address, session_tasks
from globalstep.errors import InvalidArgumentError, OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.members.ending import Patience
from globalstep.ps.server import EXIT_TERMINATED, PSOptions, PSServer, tcp_port_of
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.log_format import end_process, write_to_stderr
from globalstep.runtime.metrics_port import port_of_environ
from globalstep.runtime.process_env import raise_malloc_thresholds
from globalstep.wire.transports import known_target, register_target, transports_to
from globalstep.worker.client.causes import why_no_answer
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.client.leaving import close_clients, ends_unfinished, has_been_client, is_client
from globalstep.worker.waits.polling_wait import PollingWait

_log = logging.getLogger(__name__)

#: What a shell gives for a process that Ctrl-C has ended.
EXIT_INTERRUPTED = 128 + signal.SIGINT
#: How long a program that was asked to end may go on after `join`.
_CAUGHT_SECS = 5.0
_PROGRAM_POLL_SECS = 0.05
_POLL_SECS = 1.0
#: PS tasks that this process knew, and that do not answer for so long, have ended with the job.
_GONE_SECS = 5.0
#: How long unclosed sessions of this process are waited for when the job is done.
_CLOSE_SECS = 10.0


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
            _log.warning("Protocol %r is not available; 'grpc' is used instead.", protocol)
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
        # What a PS task's own program does instead of `join`, and that of a task which serves besides.
        self._program: PSProgram | None = None
        # The exit code of a process whose `join` has come to its end.
        self._exit_code: int | None = None
        serving = ("ps", task_index) if "ps" in cluster.jobs else host_of(cluster)
        indices = cluster.task_indices("ps") if "ps" in cluster.jobs else [serving[1]]
        known = {index: cluster.task_address(serving[0], index) for index in indices}
        task, workers = f"/job:{job_name}/task:{task_index}", session_tasks(cluster)
        self._hosts = job_name != "ps" and serving == (job_name, task_index)
        if serving == (job_name, task_index):
            raise_malloc_thresholds()
            options = PSOptions(
                bind=self._address,
                security=SecurityOptions.from_environ(os.environ),
                metrics_port=port_of_environ(),
                patience=Patience.from_environ(os.environ),
                tcp_port=tcp_port_of(os.environ),
            )
            self._ps = PSServer(options)
            known[task_index] = self._address = self._ps.address
            if self._hosts or workers:
                self._program = PSProgram(self._ps, task, self._end, self._hosts)
        register_target(
            self.target,
            [address for address in known.values() if address],
            task=task,
            session_tasks=workers,
            in_process=self._ps is not None and len(known) == 1 and not self._hosts,
            program=None if self._hosts else self._program,
        )
        if start:
            self.start()

    @property
    def target(self) -> str:
        """The target for a session's `master`."""
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
        """Begin to serve, if this is a PS task, or serves as one."""
        if self._ps is None:
            return
        self._ps.start()
        if self._hosts and self._program is not None:
            _log.info("The cluster has no job 'ps': /job:%s/task:%d holds its Variables.", *self._task[1:])
            self._program.serve_at_exit()

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
            _log.info("/job:%s/task:%d serves on %s until the job is done", *self._task[1:], self._ps.address)
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

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """Make a cluster of one PS task on a free port of this machine, and serve it here."""
        return Server({"ps": ["127.0.0.1:0"]}, job_name="ps", task_index=0, config=config, start=start)


def _check_addresses(cluster: ClusterSpec, own: str) -> None:
    """Refuse a cluster with an invalid address; this task's own is checked first."""
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
    main = threading.main_thread()

    def outlast() -> None:
        main.join(_CAUGHT_SECS)
        if main.is_alive():
            _log.warning(
                "The program caught the SystemExit of server.join(), and goes on: this task ends with code %d.", code
            )
            end_process(code)

    threading.Thread(target=outlast, name="server-end", daemon=True).start()


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


def code_of(ps: PSServer, terminated: bool) -> int:
    """Give the exit code of a PS task's process: an end that was asked for otherwise than by SIGTERM is no failure."""
    return 0 if ps.exit_code == EXIT_TERMINATED and not terminated else ps.exit_code


class PSProgram:
    """Hooks of a PS task's program: while it waits for elements of a queue, and at its end.

    TensorFlow programs end their PS tasks so, in place of `server.join()`: each worker puts an element into a queue of
    each PS task when it is done, and the PS task's program takes as many as there are workers. Meanwhile this task
    serves, and it does so until its clients have left: the last of them saves a checkpoint after it has said that it
    is done.

    Args:
        ps: It.
        task: Its name.
        end: Ends the process.
        hosts: Whether it serves besides its own work, in a cluster without a job "ps": it does until the job is done.

    Attributes:
        joined: Whether the program has called `join` or `stop`, so that nothing is left to be done at its end.
    """

    def __init__(self, ps: PSServer, task: str, end: Callable[[int], Any], hosts: bool) -> None:
        self.joined = False
        self._ps = ps
        self._task = task
        self._end = end
        self._hosts = hosts
        # Guards the looks, and the attributes below; the shard's lock is taken under it.
        self._lock = threading.Lock()
        self._begun = False
        self._terminated = False

    def __call__(self) -> None:
        """Look whether this task is to end while its program waits, and end its process then, as `join` does.

        Raises:
            SystemExit: If it is: the job is done and everybody has left, no client came, or a SIGTERM asked for it.
        """
        with self._lock:
            first, self._begun = not self._begun, True
        if first:
            self._begin()
        with self._lock:
            ends = self._ps.attend()
        if ends:
            code = code_of(self._ps, self._terminated)
            _log.info("%s ends with code %d: nobody will put more into its queues.", self._task, code)
            self.joined = True
            self._ps.shut_down()
            self._end(code)

    def _begin(self) -> None:
        """Have a SIGTERM end this task as it ends one in `join`, and the task serve on at its program's end."""
        self.serve_at_exit()
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)

    def serve_at_exit(self) -> None:
        """Have the task serve on at its program's end."""
        # Called when the main thread has come to its end, before threads can be started no more. concurrent.futures
        # ends its pools by it too, gRPC's among them; what comes later is called first.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(self._serve_on)

    def _on_term(self, signum: int, frame: FrameType | None) -> None:
        self._terminated = True
        self._ps.stop()

    def _serve_on(self) -> None:
        """Serve until the clients that are here have left, or the job is done; not where the program has failed."""
        if self.joined or ends_unfinished(getattr(sys, "last_value", None)):
            return
        self.joined = True
        if self._hosts:
            close_clients()
        elif self._ps.shard.attendance()[1]:
            _log.info("%s has all that it waited for; it serves until its clients have left.", self._task)
        with _terminated(self._ps.stop):
            while (self._hosts or self._ps.shard.attendance()[1]) and not self._ps.attend():
                self._ps.pause(_PROGRAM_POLL_SECS)
        self._ps.shut_down()


def wait_for_the_end(target: str, clock: Clock = SYSTEM_CLOCK) -> None:
    """Wait until a job is done, and this process takes no part in it any more: `Server.join` of a worker.

    TensorFlow's waits for ever, since other tasks may use what the worker's server holds. Here it holds nothing, but
    programs rely on its not returning.

    It is done when a PS task says so; or when none answers any more, this process has heard of them before, and none
    of its sessions is open.
    """
    target = known_target(target).target
    reached = has_been_client(target)
    silent_since = done_since = math.inf
    wait = PollingWait(clock, math.inf)
    with contextlib.closing(ClusterClient(transports_to(target), member=False)) as client:
        while True:
            replies = client.statuses(timeout_secs=_GONE_SECS, brief=True)
            now = clock.monotonic()
            answers = [reply for reply in replies if not isinstance(reply, OpError)]
            silent_since = math.inf if answers else min(silent_since, now)
            if answers and not reached:
                reached = True
                _log.info("Server.join(): the job's parameter servers answer.")
            if any(answer.state == pb.STATE_DONE for answer in answers):
                done_since = min(done_since, now)
            if not is_client(target) and (done_since < math.inf or (reached and now - silent_since >= _GONE_SECS)):
                return
            if now - done_since >= _CLOSE_SECS:
                _log.warning("The job is done; this process does not wait for its session, which is still open.")
                return
            if answers or reached:
                clock.sleep(_POLL_SECS)
            else:
                wait.pause(f"waiting for the job's parameter servers: {replies[0]}", lambda: why_no_answer(client))
