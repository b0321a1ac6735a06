"""The canonical trainer as five processes started by hand (rung 4): it ends exactly, and everybody leaves."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from processes import EXAMPLES, free_addresses

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.tf1.variables.checkpoint_variables import load_checkpoint

pytestmark = pytest.mark.processes

PS_FIRST = ["ps:0", "ps:1", "worker:0", "worker:1", "worker:2"]
CHIEF_LAST = ["worker:2", "ps:1", "worker:1", "ps:0", "worker:0"]
CHIEF_FIRST = ["worker:0", "worker:1", "worker:2", "ps:1", "ps:0"]


def start_trainer(processes, tasks, tmp_path, last_step, addresses, *more):
    cluster = [f"--ps_hosts={','.join(addresses[:2])}", f"--worker_hosts={','.join(addresses[2:])}"]
    for task in tasks:
        job, index = task.split(":")
        processes.start(
            task,
            EXAMPLES / "between_graph.py",
            *cluster,
            f"--job_name={job}",
            f"--task_index={index}",
            f"--last_step={last_step}",
            f"--checkpoint_dir={tmp_path / 'run'}",
            *more,
        )


@pytest.mark.parametrize("order", [PS_FIRST, CHIEF_LAST, CHIEF_FIRST], ids=["ps first", "chief last", "chief first"])
def test_it_ends_at_the_last_step_exactly_and_every_process_exits_0(processes, tmp_path, order):
    start_trainer(processes, order, tmp_path, 300, free_addresses(5))
    assert processes.wait() == dict.fromkeys(order, 0)
    prefix = latest_checkpoint(str(tmp_path / "run"))
    assert prefix == str(tmp_path / "run" / "model.ckpt-300")
    assert load_checkpoint(prefix).get_tensor("global_step") == 300
    for worker in range(3):
        assert f"worker {worker} is done" in processes.output(f"worker:{worker}")


def test_with_sync_replicas_every_worker_makes_every_step(processes, tmp_path):
    start_trainer(processes, PS_FIRST, tmp_path, 200, free_addresses(5), "--sync_replicas")
    assert processes.wait() == dict.fromkeys(PS_FIRST, 0)
    checkpoint = load_checkpoint(latest_checkpoint(str(tmp_path / "run")))
    assert checkpoint.get_tensor("global_step") == 200
    np.testing.assert_allclose(checkpoint.get_tensor("weights"), [[1.0], [-2.0], [3.0]], atol=0.05)


def test_a_ps_that_is_terminated_before_the_end_asks_to_be_started_again(processes):
    ps = processes.start("ps", "-m", "globalstep.ps", "--port", "0")
    while "serving on" not in processes.output("ps"):
        assert ps.poll() is None, processes.output("ps")
    ps.send_signal(signal.SIGTERM)
    assert processes.wait() == {"ps": 143}
