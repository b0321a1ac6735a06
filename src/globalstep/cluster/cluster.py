"""The description of a cluster: job names, task indices, addresses, and which task this process is.

`ClusterSpec` is TensorFlow's class of that name; `from_tf_config` reads the `TF_CONFIG` variable that
launchers and cluster engines set.

Layer: shared. Imports nothing of globalstep. Everything here is immutable once made, so thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

#: Job names of a chief that is not a worker; "master" is the older spelling.
CHIEF_JOBS = ("chief", "master")
_SCHEME = "grpc://"


@dataclass
class JobDef:
    """One job of a `ClusterDef`: its name, and the address of each of its tasks."""

    name: str = ""
    tasks: dict[int, str] = field(default_factory=dict)


@dataclass
class ClusterDef:
    """A cluster as plain data, shaped like TensorFlow's protocol buffer of that name."""

    job: list[JobDef] = field(default_factory=list)


@dataclass
class ServerDef:
    """A task of a cluster as plain data, shaped like TensorFlow's protocol buffer of that name.

    Attributes:
        cluster: The cluster.
        job_name: The task's job.
        task_index: Its number in the job.
        protocol: "grpc".
    """

    cluster: ClusterDef = field(default_factory=ClusterDef)
    job_name: str = ""
    task_index: int = 0
    protocol: str = "grpc"


@runtime_checkable
class _ClusterDefLike(Protocol):
    """Anything with `.job`, each with `.name` and `.tasks`: ours, or TensorFlow's protocol buffer."""

    @property
    def job(self) -> Sequence[JobDef]: ...


class ClusterSpec:
    """The jobs of a cluster, and the address of each of their tasks.

    Args:
        cluster: A dict from a job's name to a list of addresses or to a dict {task index: address} (for
            a job of which only some tasks are known); or a ClusterDef; or another ClusterSpec. Addresses
            are "host:port"; a "grpc://" before them is dropped.

    Raises:
        TypeError: If it is none of these.

    >>> cluster = ClusterSpec({"ps": ["ps0:2222"], "worker": {1: "worker1:2222"}})
    >>> cluster.task_address("worker", 1)
    'worker1:2222'
    >>> cluster.job_tasks("worker")
    [None, 'worker1:2222']
    """

    def __init__(self, cluster: object) -> None:
        if isinstance(cluster, ClusterSpec):
            jobs: Mapping[object, object] = cast("Mapping[object, object]", cluster._jobs)
        elif isinstance(cluster, Mapping):
            jobs = cast("Mapping[object, object]", cluster)
        elif isinstance(cluster, _ClusterDefLike):
            jobs = {job.name: dict(job.tasks) for job in cluster.job}
        else:
            raise TypeError(
                "`cluster` must be a dictionary mapping one or more job names to lists of network "
                "addresses, or a `ClusterDef` protocol buffer"
            )
        self._jobs: dict[str, dict[int, str]] = {
            _text("Job name", name): _tasks(name, tasks) for name, tasks in jobs.items()
        }
        if self._jobs.get("ps"):
            for job in self._jobs:
                for address in self._jobs[job].values():
                    _described.pop(address, None)
                if _runs_sessions(job):
                    _described.update({address: (self, job, index) for index, address in self._jobs[job].items()})

    @property
    def jobs(self) -> list[str]:
        """Names of the jobs."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """Count the known tasks of a job.

        Raises:
            ValueError: If there is no such job.
        """
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """List the known task indices of a job, ascending.

        Raises:
            ValueError: If there is no such job.
        """
        return sorted(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Give the address of a task.

        Raises:
            ValueError: If there is no such job, or no task of that index in it.
        """
        job = self._job(job_name)
        try:
            return job[task_index]
        except KeyError:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}") from None

    def job_tasks(self, job_name: str) -> list[str | None]:
        """List the addresses of a job by task index; None where a task's address is not known.

        Raises:
            ValueError: If there is no such job.
        """
        job = self._job(job_name)
        return [job.get(index) for index in range(max(job, default=-1) + 1)]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Give the cluster as a dict: a job's addresses as a list, or as a dict where an index is missing."""
        dense: dict[str, list[str] | dict[int, str]] = {}
        for name, tasks in self._jobs.items():
            indices = sorted(tasks)
            whole = indices == list(range(len(indices)))
            dense[name] = [tasks[i] for i in indices] if whole else {i: tasks[i] for i in indices}
        return dense

    def as_cluster_def(self) -> ClusterDef:
        """Give the cluster as a ClusterDef, its jobs sorted by name."""
        return ClusterDef([JobDef(name, dict(sorted(tasks.items()))) for name, tasks in sorted(self._jobs.items())])

    def _job(self, job_name: str) -> dict[int, str]:
        try:
            return self._jobs[job_name]
        except KeyError:
            raise ValueError(f"No such job in cluster: {job_name!r}") from None

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ClusterSpec):
            return self._jobs == other._jobs
        if isinstance(other, (Mapping, _ClusterDefLike)):
            return self._jobs == ClusterSpec(cast("object", other))._jobs
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple((name, tuple(sorted(tasks.items()))) for name, tasks in sorted(self._jobs.items())))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def target_of(cluster: ClusterSpec) -> str:
    """Give the target that stands for all PS tasks of a cluster.

    >>> target_of(ClusterSpec({"ps": ["a:1", "b:2"], "worker": ["c:3"]}))
    'grpc://a:1,b:2'
    """
    addresses = [cluster.task_address("ps", index) for index in cluster.task_indices("ps")]
    return "grpc://" + ",".join(addresses)


#: Address of a task that runs sessions -> the last cluster with PS tasks that this process made and that has it, its
#: job and its index. Written while graphs are built.
_described: dict[str, tuple[ClusterSpec, str, int]] = {}


def described_task(address: str) -> tuple[ClusterSpec, str, int] | None:
    """Give the cluster that this process has described and in which a worker, or the chief, has an address.

    A client of servers that are there already names the server of a worker, which only the cluster's description tells
    from a PS task's.

    Returns:
        The cluster, the job and the index; None if no cluster with PS tasks has it.
    """
    return _described.get(address)


def _runs_sessions(job: str) -> bool:
    return job == "worker" or job in CHIEF_JOBS


def is_chief(task: str) -> bool:
    """Return whether a task is its cluster's chief by its job's name.

    >>> is_chief("/job:chief/task:0"), is_chief("/job:worker/task:0")
    (True, False)
    """
    return task.removeprefix("/job:").partition("/")[0] in CHIEF_JOBS


def session_tasks(cluster: ClusterSpec) -> tuple[str, ...]:
    """Name the tasks of a cluster that run sessions: its workers and its chief.

    >>> session_tasks(ClusterSpec({"ps": ["a:1"], "worker": ["b:2"], "chief": ["c:3"]}))
    ('/job:worker/task:0', '/job:chief/task:0')
    """
    return tuple(
        f"/job:{job}/task:{index}" for job in cluster.jobs if _runs_sessions(job) for index in cluster.task_indices(job)
    )


def _text(what: str, value: object) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{what} {value!r} must be bytes or unicode")
    return value


def _tasks(job_name: object, tasks: object) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        items = list(cast("Mapping[int, object]", tasks).items())
    elif isinstance(tasks, (list, tuple)):
        items = list(enumerate(cast("Sequence[object]", tasks)))
    else:
        raise TypeError(f"The tasks for job {job_name!r} must be a list or a dictionary from integers to strings.")
    return {int(index): _address(_text("Task address", address)) for index, address in items}


def _address(text: str) -> str:
    """Give an address without its scheme, and without blanks around host and port, which TensorFlow skips, too."""
    host, colon, port = text.strip().removeprefix(_SCHEME).rpartition(":")
    return f"{host.strip()}{colon}{port.strip()}"


@dataclass(frozen=True)
class TaskConfig:
    """This process's place: its cluster, its job and its index in it.

    Attributes:
        cluster: The cluster; empty (and false) for a process on its own.
        job: Name of this process's job: "ps", "worker", "chief", "master", "evaluator"; "" on its own.
        index: Its task index.
        environment: The `environment` field of TF_CONFIG as given ("cloud"); "" when absent.
    """

    cluster: ClusterSpec = field(default_factory=lambda: ClusterSpec({}))
    job: str = ""
    index: int = 0
    environment: str = ""

    @property
    def task(self) -> str:
        """Name of the task in a device string's form, "/job:worker/task:1"; "" on its own."""
        return f"/job:{self.job}/task:{self.index}" if self.job else ""

    @property
    def address(self) -> str:
        """Address of this task; "" when the cluster does not list it (an evaluator, a process on its own)."""
        if self.job in self.cluster.jobs and self.index in self.cluster.task_indices(self.job):
            return self.cluster.task_address(self.job, self.index)
        return ""

    @property
    def is_chief(self) -> bool:
        """Whether it is the chief: the chief's job, else worker 0, else a process on its own."""
        if not self.job or self.job in CHIEF_JOBS:
            return True
        has_chief = any(name in self.cluster.jobs for name in CHIEF_JOBS)
        return self.job == "worker" and self.index == 0 and not has_chief


def from_tf_config(environ: Mapping[str, str] | None = None) -> TaskConfig:
    """Read TF_CONFIG.

    It is JSON: `{"cluster": {"chief": [...], "ps": [...], "worker": [...]}, "task": {"type": "worker",
    "index": 0}, "environment": "cloud"}`. A job's addresses may be a list, or a map from index to address
    that names only some tasks (a worker that needs to know only itself and the PS; Kubeflow writes it
    under "sparseCluster"). The chief's job may be called "master". An evaluator need not be listed.

    Args:
        environ: The environment; default `os.environ`.

    Returns:
        What this process is. Without TF_CONFIG, or with one without a cluster: a process on its own.

    Raises:
        ValueError: If TF_CONFIG is malformed or contradicts itself; the text says where.

    >>> config = from_tf_config({"TF_CONFIG": '{"cluster": {"ps": ["a:1"], "worker": ["b:2"]},'
    ...                                       ' "task": {"type": "worker", "index": 0}}'})
    >>> config.task, config.address, config.is_chief
    ('/job:worker/task:0', 'b:2', True)
    """
    text = (os.environ if environ is None else environ).get("TF_CONFIG", "").strip()
    if not text:
        return TaskConfig()
    from globalstep.cluster.tf_config import read_tf_config

    return read_tf_config(text)


def is_address(address: str) -> bool:
    """Whether a text is "host:port", perhaps with "grpc://" before it.

    >>> is_address("grpc://a:1"), is_address("http://a:1"), is_address("a")
    (True, False, False)
    """
    host, colon, port = address.removeprefix(_SCHEME).rpartition(":")
    return bool(host and colon) and "/" not in host and is_port(port)


def is_port(text: str) -> bool:
    """Whether a text is a port: a number from 0 to 65535.

    >>> is_port("0"), is_port("65535"), is_port("65536"), is_port("-1"), is_port("\u00b2")
    (True, True, False, False, False)
    """
    # The system would take a number beyond the last one for another; int() takes no number of thousands of digits.
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 1 << 16
