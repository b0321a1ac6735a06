"""Programs in the styles that people wrote for TensorFlow 1.x, each as real processes (rung 4).

They are self-contained on purpose, as such programs are; what public ones use is in docs/compatibility.md.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from processes import free_addresses

from globalstep.tf1.variables.checkpoint_variables import load_variable

pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).resolve().parent / "programs"
#: Each well below what it takes on an idle machine times three.
TIMEOUT_SECS = 60.0


def tasks_of(ps, workers):
    return [*(("ps", index) for index in range(ps)), *(("worker", index) for index in range(workers))]


def start_with_flags(processes, program, ps, workers, *more):
    addresses = free_addresses(ps + workers)
    hosts = [f"--ps_hosts={','.join(addresses[:ps])}", f"--worker_hosts={','.join(addresses[ps:])}"]
    for job, index in tasks_of(ps, workers):
        task = [f"--job_name={job}", f"--task_index={index}"]
        processes.start(f"{job}:{index}", PROGRAMS / program, *hosts, *task, *more)


def start_with_tf_config(processes, program, ps, workers, *arguments):
    addresses = free_addresses(ps + workers)
    cluster = {"ps": addresses[:ps], "worker": addresses[ps:]}
    for job, index in tasks_of(ps, workers):
        config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
        processes.start(f"{job}:{index}", PROGRAMS / program, *arguments, env={"TF_CONFIG": config})


def printed(processes, workers, pattern):
    """Give what the workers printed that matches: a tuple of numbers for each match."""
    found = []
    for index in range(workers):
        matches = re.findall(pattern, processes.output(f"worker:{index}"), re.MULTILINE)
        found += [tuple(map(float, match if isinstance(match, tuple) else (match,))) for match in matches]
    return found


def check(processes, ps, workers, factor=0.7):
    """Everybody ended well, and the loss fell."""
    codes = processes.wait(TIMEOUT_SECS)
    outputs = "\n".join(processes.output(name) for name in codes)
    assert codes == {f"{job}:{index}": 0 for job, index in tasks_of(ps, workers)}, outputs
    losses = printed(processes, workers, r"^losses (\S+) (\S+)$")
    assert losses, outputs
    # Whoever starts late finds a loss that has fallen already.
    assert max(first for first, _ in losses) * factor > max(last for _, last in losses), outputs


def test_with_a_supervisor_each_step_counts_once(processes, tmp_path):
    start_with_flags(processes, "linear_supervisor.py", 1, 2, "--steps=120", f"--run_dir={tmp_path / 'run'}")
    check(processes, 1, 2)
    # Whoever ends last sees the steps of all; a loop on the step may go a few beyond it.
    ends = printed(processes, 2, r"^step (\d+) after (\d+) of its own$")
    assert len(ends) == 2
    assert max(step for step, _ in ends) == sum(own for _, own in ends) >= 120


def test_with_slim_a_job_trains_and_its_checkpoint_is_evaluated(processes, tmp_path):
    run = tmp_path / "run"
    start_with_flags(processes, "slim_mlp.py", 2, 2, "--steps=150", f"--run_dir={run}")
    check(processes, 2, 2)
    ((accuracy,),) = printed(processes, 1, r"^accuracy (\S+)$")
    assert accuracy > 0.9
    assert load_variable(str(run), "global_step") >= 150


@pytest.mark.parametrize(
    ("program", "ps", "workers", "last_step", "factor"),
    [
        ("monitored_mlp.py", 2, 2, 300, 0.5),
        ("factorization_machine.py", 2, 2, 400, 0.9),
        ("sequences/language_model.py", 2, 2, 200, 0.7),
    ],
)
def test_with_flags_training_ends_at_the_last_step(processes, tmp_path, program, ps, workers, last_step, factor):
    run = tmp_path / "run"
    start_with_flags(processes, program, ps, workers, f"--last_step={last_step}", f"--run_dir={run}")
    check(processes, ps, workers, factor)
    assert printed(processes, workers, r"^step (\d+)$") == [(last_step,)]
    assert load_variable(str(run), "global_step") == last_step


def test_lines_read_beside_a_supervisor_and_values_of_a_second_session(processes, tmp_path):
    start_with_flags(processes, "queues/csv_supervisor.py", 2, 2, "--last_step=300", f"--run_dir={tmp_path / 'run'}")
    check(processes, 2, 2, 0.2)
    found = printed(processes, 2, r"^weights (\S+) (\S+) (\S+) (\S+)$")
    assert len(found) == 2
    assert all(
        abs(weight - wanted) < 0.5 for weights in found for weight, wanted in zip(weights, (1, 2, 3, 4), strict=True)
    )


@pytest.mark.long
def test_a_program_that_imports_tensorflow_runs_as_it_is(processes, tmp_path):
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    write_mnist(data)
    options = [f"--data_dir={data}", f"--log_dir={run}", "--train_steps=120"]
    launch = ["-m", "globalstep", "launch", "--as-tensorflow", "--host-flags", "--ps", 1, "--workers", 2]
    processes.start("launch", *launch, PROGRAMS / "unchanged" / "tutorial_replica.py", *options)
    assert processes.wait(TIMEOUT_SECS) == {"launch": 0}, processes.output("launch")
    losses = re.findall(r"losses (\S+) (\S+)$", processes.output("launch"), re.MULTILINE)
    assert max(float(first) for first, _ in losses) * 0.7 > max(float(last) for _, last in losses)
    assert load_variable(str(run), "global_step") == 120
    for trace in run.glob("timeline-*.json"):
        spans = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
        assert {"compute", "push"} <= spans
    assert list(run.glob("timeline-*.json"))


def write_mnist(folder):
    """Files of MNIST's format: in an image of label n, rows 2 n and 2 n + 1 are bright."""
    random = np.random.default_rng(0)
    for kind, count in (("train", 500), ("t10k", 50)):
        labels = random.integers(10, size=count).astype(np.uint8)
        images = random.integers(80, size=(count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 2] += 150
        head = struct.pack(">4I", 2051, count, 28, 28)
        (folder / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes()))
        head = struct.pack(">2I", 2049, count)
        (folder / f"{kind}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + labels.tobytes()))


def test_with_tf_config_training_ends_at_the_last_step(processes, tmp_path):
    run = tmp_path / "run"
    start_with_tf_config(processes, "columns/wide_and_deep.py", 2, 2, run, 300)
    check(processes, 2, 2)
    assert printed(processes, 2, r"^step (\d+)$") == [(300,)]
    assert load_variable(str(run), "global_step") == 300


def test_clients_of_servers_that_are_there_already(processes, tmp_path):
    addresses = free_addresses(3)
    hosts = [f"--ps_hosts={addresses[0]}", f"--worker_hosts={','.join(addresses[1:])}", f"--run_dir={tmp_path / 'run'}"]
    program = PROGRAMS / "apart" / "servers_apart.py"
    for job, index in tasks_of(1, 2):
        processes.start(f"server:{job}:{index}", program, *hosts, f"--job_name={job}", f"--task_index={index}")
    for index in range(2):  # one that came after the end would wait for a job that begins
        processes.until(f"server:worker:{index}", "the job's parameter servers answer")
    for index in range(2):
        processes.start(f"worker:{index}", program, *hosts, f"--task_index={index}")
    codes = processes.wait(TIMEOUT_SECS)
    assert set(codes.values()) == {0}, "\n".join(processes.output(name) for name in codes)
    losses = printed(processes, 2, r"^losses (\S+) (\S+)$")
    assert len(losses) == 2
    assert max(first for first, _ in losses) * 0.7 > max(last for _, last in losses)
