"""Workers of different speeds as processes, under staleness="wait": nobody is too far ahead, and nobody is in the way.

One is slow, one is killed, and one leaves early; the job ends at its last step exactly.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from processes import Processes, free_addresses

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.deploy.audit.audit import audit
from globalstep.deploy.audit.reading import Findings, read_volumes
from globalstep.files.journal_records import EventKind
from globalstep.tf1.variables.checkpoint_variables import load_checkpoint
from globalstep.wire.known_progress import KnownProgress

pytestmark = [pytest.mark.processes, pytest.mark.long]

PROGRAM = Path(__file__).parent / "programs" / "uneven" / "uneven_workers.py"
LAST_STEP = 200
MOST_AHEAD = 2


def pushing_tasks(run_dir):
    """The task of each accepted push, in their order."""
    findings = Findings()
    found = []
    for volume in read_volumes(str(run_dir), findings, KnownProgress()):
        for piece in volume.pieces(findings):
            moving = piece.rows[(piece.rows["kind"] == EventKind.PUSH) & (piece.rows["by"] > 0)]
            found += [piece.clients[number][1] for number in moving["client"].tolist()]
    assert findings == Findings()
    return found


def most_between(order, task, other):
    """How many pushes `other` has made, at most, between two pushes of `task`."""
    most = made = 0
    first, last = order.index(task), len(order) - 1 - order[::-1].index(task)
    for who in order[first : last + 1]:
        if who == task:
            most, made = max(most, made), 0
        made += who == other
    return most


def test_the_fast_wait_for_the_slow_and_not_for_who_is_gone(tmp_path):
    run_dir = tmp_path / "run"
    addresses = free_addresses(6)
    tasks = ["ps:0", "ps:1", *(f"worker:{at}" for at in range(4))]
    policy = f"spread_above=0,staleness=wait,max_staleness={MOST_AHEAD}"
    with Processes(tmp_path) as processes:
        for task in tasks:
            job, index = task.split(":")
            processes.start(
                task,
                PROGRAM,
                f"--ps_hosts={','.join(addresses[:2])}",
                f"--worker_hosts={','.join(addresses[2:])}",
                f"--job_name={job}",
                f"--task_index={index}",
                f"--run_dir={run_dir}",
                f"--last_step={LAST_STEP}",
                "--slow_task=1",
                "--dying_task=2",
                "--leaving_task=3",
                env={"GLOBALSTEP_RUN_POLICY": policy},
            )
        codes = processes.wait(100.0)
        said = {task: processes.output(task) for task in tasks}
    assert codes == dict.fromkeys(tasks, 0) | {"worker:2": -signal.SIGKILL}, said
    assert load_checkpoint(latest_checkpoint(str(run_dir))).get_tensor("global_step") == LAST_STEP
    found = audit(str(run_dir))
    assert found.proven, found.findings
    order = pushing_tasks(run_dir)
    assert len(order) == LAST_STEP
    workers = [f"/job:worker/task:{at}" for at in range(4)]
    assert set(order) == set(workers)
    for task in workers:
        for other in workers:
            if other != task:
                assert most_between(order, task, other) <= 2 * MOST_AHEAD + 2, (task, other, order)
    # Those that are left go on without the others.
    assert [order.count(task) for task in workers[2:]] == [10, 20]
