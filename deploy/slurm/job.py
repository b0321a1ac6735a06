"""Slurm job: every task of the cluster as a step of its own, restarts, and the end of the job.

It is `globalstep launch` with srun before each command: see slurm_step.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from globalstep.cluster.cluster import ClusterSpec
from globalstep.cluster.run_identity import RUN_VARIABLE
from globalstep.deploy.launch.console import Console
from globalstep.deploy.launch.launcher import Launcher, Task
from globalstep.deploy.launch.live_runs import kept
from globalstep.deploy.launch.options import environ_of_task, job_sizes, with_run_token
from globalstep.deploy.slurm.cli import add_cluster
from globalstep.deploy.slurm.step import expand_hosts
from globalstep.runtime.process_env import tuned

#: Ports of jobs: below those that Linux hands out by itself, and other ones for each of 200 jobs in a row.
_FIRST_PORT = 12000
_PORTS_PER_JOB = 100
_JOBS_IN_A_ROW = 200


def addresses_of_nodes(nodes: Sequence[str], shown: str) -> dict[str, str]:
    r"""Find the addresses by which Slurm itself reaches nodes.

    Args:
        nodes: Their names.
        shown: What `scontrol --oneliner show node` says of them.

    Returns:
        Node -> its name in the network, or its IP address.

    >>> addresses_of_nodes(["n1", "n2"], "NodeName=n1 NodeAddr=10.0.0.1 \nNodeName=n2 Arch=x86_64")
    {'n1': '10.0.0.1', 'n2': 'n2'}
    """
    addresses: dict[str, str] = {}
    for line in shown.splitlines():
        fields = {match[1]: match[2] for match in re.finditer(r"\b(NodeName|NodeAddr)=(\S+)", line)}
        if "NodeName" in fields:
            addresses[fields["NodeName"]] = fields.get("NodeAddr", fields["NodeName"])
    return {node: addresses.get(node, node) for node in nodes}


def round_the_nodes(nodes: Sequence[str], counts: str) -> list[str]:
    """Say on which node each task is: PS tasks come first, and are on different ones.

    Args:
        nodes: Their names.
        counts: How many tasks Slurm has given to each, as in SLURM_TASKS_PER_NODE.

    >>> round_the_nodes(["a", "b", "c"], "2,1(x2)")
    ['a', 'b', 'c', 'a']
    """
    left: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        left += [int(count)] * int(times or 1)
    turns = range(max(left, default=0))
    return [node for turn in turns for node, count in zip(nodes, left, strict=True) if count > turn]


def lay_out(hosts: Sequence[str], jobs: Mapping[str, int], port: int) -> ClusterSpec:
    """Make the cluster of tasks whose hosts are known.

    Args:
        hosts: The host of each task.
        jobs: Job name -> number of tasks; they follow each other in this order.
        port: Of the first task; each further one has the next.

    Raises:
        ValueError: If there are not as many tasks in the jobs as there are hosts.

    >>> lay_out(["a", "a", "b"], {"ps": 1, "worker": 2}, 12000)
    ClusterSpec({'ps': ['a:12000'], 'worker': ['a:12001', 'b:12002']})
    """
    wanted = sum(jobs.values())
    if wanted != len(hosts):
        raise ValueError(f"The cluster has {wanted} tasks, and Slurm has given {len(hosts)}: give --ntasks={wanted}.")
    addresses = iter(f"{host}:{port + rank}" for rank, host in enumerate(hosts))
    return ClusterSpec({job: list(itertools.islice(addresses, count)) for job, count in jobs.items() if count})


def make_tasks(
    nodes: Sequence[str], cluster: ClusterSpec, script: Sequence[str], cpus: int, environ: Mapping[str, str]
) -> list[Task]:
    """Say what to start for each task of the cluster."""
    # With srun's own variables of the batch script's a step would be laid out like the job.
    inherited = {
        name: value for name, value in environ.items() if not re.match(r"SLURM_(NTASKS_PER|TASKS_PER|DISTRI)", name)
    }
    base = tuned(inherited, max(1, cpus)) | {"PYTHONUNBUFFERED": "1", "GLOBALSTEP_LAUNCH": "1"}
    if job_id := environ.get("SLURM_JOB_ID"):
        # The same when Slurm begins the job again, and no other job's.
        base.setdefault(RUN_VARIABLE, f"{environ.get('SLURM_JOB_NAME', 'job')}-{job_id}")
    jobs = cluster.as_dict()
    tasks: list[Task] = []
    members = [(job, index) for job in cluster.jobs for index in cluster.task_indices(job)]
    # Behind those of the tasks: each PS task has one more, for the TCP connections beside gRPC.
    tcp_port = 1 + max(int(cluster.task_address(*member).rpartition(":")[2]) for member in members)
    for (job, index), node in zip(members, nodes, strict=True):
        step = [sys.executable, "-m", "globalstep.deploy.slurm.step", f"--name={job}-{index}", f"--node={node}"]
        # Others know a PS task by its node's address.
        step += [f"--cpus={cpus}", *(["--stay"] if job == "ps" else []), "--", sys.executable]
        program = ["-m", "globalstep.ps", f"--tcp-port={tcp_port + index}"] if job == "ps" else list(script)
        config = json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})
        tasks.append(Task(f"{job}:{index}", step + program, environ_of_task(base, job) | {"TF_CONFIG": config}))
    return tasks


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job to its end; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m globalstep.deploy.slurm.job", description=__doc__.splitlines()[0])
    add_cluster(parser)
    args = parser.parse_args(argv)
    environ = with_run_token(os.environ)
    names = environ["SLURM_JOB_NODELIST"]
    shown = subprocess.run(
        ["scontrol", "--oneliner", "show", "node", names], check=True, capture_output=True, text=True
    ).stdout
    addresses = addresses_of_nodes(expand_hosts(names), shown)
    nodes = round_the_nodes(list(addresses), environ["SLURM_TASKS_PER_NODE"])
    port = args.port
    if port is None:
        port = _FIRST_PORT + _PORTS_PER_JOB * (int(environ["SLURM_JOB_ID"]) % _JOBS_IN_A_ROW)
    cluster = lay_out([addresses[node] for node in nodes], job_sizes(args), port)
    tasks = make_tasks(nodes, cluster, [args.script, *args.args], args.cpus, environ)
    log_dir = Path(args.log_dir) if args.log_dir else None
    if log_dir is not None and (restarts := environ.get("SLURM_RESTART_COUNT")):
        log_dir /= f"requeue-{restarts}"
    console = Console(sys.stdout, environ)
    try:
        ps = [task for task in cluster.job_tasks("ps") if task]
        with kept(ps, tasks[0].environ, [args.script, *args.args]):
            return asyncio.run(Launcher(tasks, console, args.max_restarts, args.grace_secs, log_dir).run())
    finally:
        console.finish()


if __name__ == "__main__":
    sys.exit(main())
