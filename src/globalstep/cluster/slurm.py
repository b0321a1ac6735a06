"""The cluster of a Slurm job, from the SLURM_* variables that Slurm gives to the job and to the tasks of a step.

`ClusterSpec.from_slurm` and `gs.train.from_slurm` are made here. Tasks have ranks; the first ranks are those of
the first job, and so on. In a heterogeneous job each component is a job of the cluster.

Layer: shared. Pure: nothing is asked of Slurm itself. Thread-safe.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence

from globalstep.cluster.cluster import CHIEF_JOBS, ClusterSpec, TaskConfig

#: Ports of jobs: below those that Linux hands out by itself, and other ones for each of 200 jobs in a row.
_FIRST_PORT = 12000
_PORTS_PER_JOB = 100
_JOBS_IN_A_ROW = 200
#: What the components of a heterogeneous job are, by how many there are.
_COMPONENTS = {2: ("ps", "worker"), 3: ("chief", "ps", "worker")}
#: The name that Slurm gives to components, and the one before release 20.02, which tasks are still given.
_GROUPS = ("HET", "PACK")


def expand_hosts(text: str) -> list[str]:
    """List the hosts of Slurm's short form.

    Raises:
        ValueError: If it is none.

    >>> expand_hosts("gpu[01-03,7],login")
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'login']
    """
    hosts: list[str] = []
    for item in re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+|[\[\]]", text):
        parts = re.split(r"\[([^\]]*)\]", item)
        choices = [_range(part, text) if i % 2 else [part] for i, part in enumerate(parts)]
        hosts += ["".join(chosen) for chosen in itertools.product(*choices)]
    if not hosts or any(re.search(r"[\[\]\s]", host) for host in hosts):
        raise ValueError(f"{text!r} is not a list of hosts in Slurm's form, such as 'node[1-3],login'.")
    return hosts


def _range(text: str, whole: str) -> list[str]:
    numbers: list[str] = []
    for item in text.split(","):
        if not (match := re.fullmatch(r"(\d+)(?:-(\d+))?", item)):
            raise ValueError(f"{whole!r} is not a list of hosts in Slurm's form: {item!r} is no number or range.")
        first, last = match[1], match[2] or match[1]
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """List the counts of Slurm's short form: a number for each node.

    Raises:
        ValueError: If it is none.

    >>> expand_counts("3,1(x3)")
    [3, 1, 1, 1]
    """
    counts: list[int] = []
    for item in text.split(","):
        if not (match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)):
            raise ValueError(f"{text!r} is not a list of tasks per node in Slurm's form, such as '3,1(x3)'.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def hosts_of_tasks(hosts: Sequence[str], counts: Sequence[int], distribution: str = "block") -> list[str]:
    """Say on which host each task is, by its rank.

    Args:
        hosts: The nodes.
        counts: How many tasks each of them has.
        distribution: "block" fills one node after the other, "cyclic" goes round; what follows a colon or comma is
            about sockets and does not matter.

    Raises:
        ValueError: If there is not a count for each host, or the distribution is another one.

    >>> hosts_of_tasks(["a", "b"], [3, 1], "cyclic")
    ['a', 'b', 'a', 'a']
    """
    if len(hosts) != len(counts):
        raise ValueError(f"Slurm names {len(hosts)} nodes, {', '.join(hosts)}, but tasks of {len(counts)} nodes.")
    kind = re.split(r"[:,]", distribution)[0]
    if kind == "block":
        return [host for host, count in zip(hosts, counts, strict=True) for _ in range(count)]
    if kind != "cyclic":
        raise ValueError(f"Tasks distributed by {distribution!r} cannot be located; start them with `srun -m block`.")
    return [
        host
        for turn in range(max(counts, default=0))
        for host, count in zip(hosts, counts, strict=True)
        if count > turn
    ]


def cluster_from_slurm(
    jobs: Mapping[str, int] | None = None, port: int | None = None, environ: Mapping[str, str] | None = None
) -> ClusterSpec:
    """Make the cluster of the Slurm job, or step, that this process is in; see `ClusterSpec.from_slurm`."""
    environ = os.environ if environ is None else environ
    if not environ.get("SLURM_JOB_ID"):
        raise ValueError("There is no SLURM_JOB_ID: this process was not started by Slurm.")
    components = _components(environ)
    if jobs is None:
        sizes = [len(component) for component in components]
        jobs = _jobs_of(sizes)
    return cluster_on([host for component in components for host in component], jobs, port_of_job(port, environ))


def cluster_on(hosts: Sequence[str], jobs: Mapping[str, int], port: int) -> ClusterSpec:
    """Make the cluster of tasks whose hosts are known.

    Args:
        hosts: The host of each task, by rank.
        jobs: Job name -> number of tasks; their ranks follow each other in this order.
        port: Of the first task; each further one has the next.

    Raises:
        ValueError: If there are not as many tasks in the jobs as there are hosts, or several chiefs.

    >>> cluster_on(["a", "a", "b"], {"ps": 1, "worker": 2}, 12000)
    ClusterSpec({'ps': ['a:12000'], 'worker': ['a:12001', 'b:12002']})
    """
    wanted = sum(jobs.values())
    if wanted != len(hosts):
        raise ValueError(
            f"The jobs {dict(jobs)} have {wanted} tasks, but Slurm started {len(hosts)}; give --ntasks={wanted}, or "
            "say how many tasks each job has."
        )
    if any(jobs.get(name, 0) > 1 for name in CHIEF_JOBS):
        raise ValueError(f"The jobs {dict(jobs)} have more than one chief.")
    addresses = iter(f"{host}:{port + rank}" for rank, host in enumerate(hosts))
    return ClusterSpec({job: list(itertools.islice(addresses, count)) for job, count in jobs.items() if count})


def from_slurm(
    jobs: Mapping[str, int] | None = None, port: int | None = None, environ: Mapping[str, str] | None = None
) -> TaskConfig:
    """Say what this task of a Slurm step is, as `from_tf_config` does elsewhere.

    Args:
        jobs: As `ClusterSpec.from_slurm`.
        port: The same.
        environ: The same.

    Returns:
        The cluster, and this process's job and index in it, by SLURM_PROCID.

    Raises:
        ValueError: As `ClusterSpec.from_slurm`.

    >>> environ = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2,1",
    ...            "SLURM_PROCID": "1"}
    >>> from_slurm(environ=environ).task
    '/job:worker/task:0'
    """
    environ = os.environ if environ is None else environ
    cluster = cluster_from_slurm(jobs, port, environ)
    rank = int(environ.get("SLURM_PROCID", "0"))
    tasks = [(job, index) for job in cluster.jobs for index in cluster.task_indices(job)]
    if rank >= len(tasks):
        raise ValueError(f"SLURM_PROCID is {rank}, but the cluster has {len(tasks)} tasks.")
    job, index = tasks[rank]
    return TaskConfig(cluster, job, index)


def _jobs_of(sizes: Sequence[int]) -> dict[str, int]:
    if len(sizes) == 1:
        if sizes[0] < 2:
            raise ValueError("A cluster needs a PS and a worker, but Slurm started one task; give --ntasks.")
        return {"ps": 1, "worker": sizes[0] - 1}
    if len(sizes) not in _COMPONENTS:
        raise ValueError(
            f"The job has {len(sizes)} components, and nothing says what they are; give jobs={{name: tasks}}. Two are "
            "ps and worker; three are chief, ps and worker."
        )
    return dict(zip(_COMPONENTS[len(sizes)], sizes, strict=True))


def port_of_job(port: int | None, environ: Mapping[str, str]) -> int:
    """Give the port of the first task: as given, or one that goes with the Slurm job's id."""
    if port is not None:
        return port
    job = environ.get("SLURM_JOB_ID_HET_GROUP_0") or environ["SLURM_JOB_ID"]
    return _FIRST_PORT + _PORTS_PER_JOB * (int(job) % _JOBS_IN_A_ROW)


def _components(environ: Mapping[str, str]) -> list[list[str]]:
    """Give the host of each task, by rank, for each component of the job."""
    distribution = environ.get("SLURM_DISTRIBUTION", "block")
    for group in _GROUPS:
        size = int(environ.get(f"SLURM_{group}_SIZE") or 0)
        names = [(f"JOB_NODELIST_{group}_GROUP_{i}", f"TASKS_PER_NODE_{group}_GROUP_{i}") for i in range(size)]
        if size > 1 and f"SLURM_{names[-1][0]}" in environ and _is_of_whole_job(environ, group):
            return [_hosts(environ, *pair, distribution) for pair in names]
    if "SLURM_STEP_NODELIST" in environ:
        return [_hosts(environ, "STEP_NODELIST", "STEP_TASKS_PER_NODE", distribution)]
    return [_hosts(environ, "JOB_NODELIST", "TASKS_PER_NODE", distribution)]


def _is_of_whole_job(environ: Mapping[str, str], group: str) -> bool:
    """Whether this is the batch script, or a task of a step over all components."""
    name_of_count = re.compile(rf"SLURM_NTASKS_{group}_GROUP_\d+")
    tasks = sum(int(value) for name, value in environ.items() if name_of_count.fullmatch(name))
    step = environ.get("SLURM_STEP_NUM_TASKS")
    return step is None or not tasks or int(step) == tasks


def _hosts(environ: Mapping[str, str], nodes: str, counts: str, distribution: str) -> list[str]:
    missing = [f"SLURM_{name}" for name in (nodes, counts) if not environ.get(f"SLURM_{name}")]
    if missing:
        raise ValueError(f"Slurm has not set {' and '.join(missing)}; was the job submitted with --ntasks?")
    return hosts_of_tasks(
        expand_hosts(environ[f"SLURM_{nodes}"]), expand_counts(environ[f"SLURM_{counts}"]), distribution
    )
