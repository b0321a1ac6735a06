"""Clusters from SLURM_*: environments recorded from Slurm 22.05, and what must be refused."""

from pathlib import Path

import pytest

import globalstep as gs
from globalstep.cluster.slurm import cluster_from_slurm, expand_counts, expand_hosts, from_slurm, hosts_of_tasks

RECORDED = Path(__file__).parents[1] / "recorded" / "slurm"


def recorded(name, **changes):
    lines = (RECORDED / f"{name}.txt").read_text().splitlines()
    return {**dict(line.split("=", 1) for line in lines), **changes}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("n[08-11],login", ["n08", "n09", "n10", "n11", "login"]),
        ("a[1,3-4]b,c-d", ["a1b", "a3b", "a4b", "c-d"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_lists_of_hosts(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", "n[1-", "n[a-b]", "n1 n2", "n[1-2]]", "n[]"])
def test_what_is_no_list_of_hosts(text):
    with pytest.raises(ValueError, match="is not a list of hosts in Slurm's form"):
        expand_hosts(text)


def test_counts():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(ValueError, match="is not a list of tasks per node"):
        expand_counts("2(x3")


@pytest.mark.parametrize(
    ("distribution", "hosts"),
    [("block", "aaab"), ("cyclic", "abaa"), ("block:cyclic", "aaab"), ("cyclic,NoPack", "abaa")],
)
def test_distributions(distribution, hosts):
    assert hosts_of_tasks(["a", "b"], [3, 1], distribution) == list(hosts)


def test_a_distribution_that_cannot_be_known():
    with pytest.raises(ValueError, match="srun -m block"):
        hosts_of_tasks(["a"], [1], "arbitrary")


def test_a_batch_script():
    cluster = gs.train.ClusterSpec.from_slurm({"ps": 2, "chief": 1, "worker": 3}, environ=recorded("hom_batch"))
    # Job 2: ports from 12000 + 2 * 100.
    assert cluster.as_dict() == {
        "ps": ["node1:12200", "node1:12201"],
        "chief": ["node1:12202"],
        "worker": ["node2:12203", "node3:12204", "node4:12205"],
    }


def test_a_task_of_a_step():
    task = gs.train.from_slurm(port=500, environ=recorded("hom_5"))
    assert task.task == "/job:worker/task:4"
    assert task.address == "node4:505"
    assert task.cluster.task_address("ps", 0) == "node1:500"
    assert not task.is_chief


def test_the_first_worker_is_the_chief():
    assert from_slurm(environ=recorded("hom_5", SLURM_PROCID="1")).is_chief


@pytest.mark.parametrize("name", ["het_batch", "het_2", "het_2_pack_names_only"])
def test_a_heterogeneous_job(name):
    cluster = cluster_from_slurm(port=500, environ=recorded(name))
    assert cluster.as_dict() == {
        "chief": ["node1:500"],
        "ps": ["node2:501", "node3:502"],
        "worker": ["node4:503", "node4:504", "node4:505"],
    }


def test_a_task_of_a_heterogeneous_job_has_the_port_of_all():
    """Each component has a job id of its own; the first one's counts."""
    task = from_slurm(environ=recorded("het_2"))
    assert task.task == "/job:ps/task:1"
    assert task.address == "node3:12302"


def test_a_step_of_one_component_is_a_cluster_of_its_own():
    environ = recorded("het_2", SLURM_STEP_NUM_TASKS="3", SLURM_STEP_NODELIST="node4", SLURM_STEP_TASKS_PER_NODE="3")
    assert cluster_from_slurm(port=1, environ=environ).as_dict() == {
        "ps": ["node4:1"],
        "worker": ["node4:2", "node4:3"],
    }


@pytest.mark.parametrize(
    ("jobs", "environ", "said"),
    [
        (None, {}, "was not started by Slurm"),
        ({"ps": 1, "worker": 2}, recorded("hom_5"), "have 3 tasks, but Slurm started 6; give --ntasks=3"),
        ({"ps": 1, "chief": 2, "worker": 3}, recorded("hom_5"), "more than one chief"),
        (None, {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1"}, "has not set SLURM_TASKS_PER_NODE"),
        (None, {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "1"}, "started one task"),
        (None, {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "1(x2)"}, "tasks of 2 nodes"),
    ],
)
def test_what_is_refused(jobs, environ, said):
    with pytest.raises(ValueError) as raised:
        cluster_from_slurm(jobs, environ=environ)
    assert said in str(raised.value)


def test_a_rank_that_no_task_has():
    with pytest.raises(ValueError, match="SLURM_PROCID is 9, but the cluster has 6 tasks"):
        from_slurm(environ=recorded("hom_5", SLURM_PROCID="9"))
