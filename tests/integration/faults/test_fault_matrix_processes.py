"""The fault matrix's kill and SIGSTOP with real processes, and broken messages between real processes (rung 4).

A launch runs through all moments of one task and one fault: each process strikes itself at its point once the faults
before have happened (planned_faults), the launcher starts again what died, and the job goes on. The
job is counting_job.py, which compares all Variables with global_step in cut after cut and fails when one is wrong.

By default: one point a moment of every kill, of SIGSTOP for PS 0 and a worker with short sleeps. All points, of all
tasks, with sleeps of 5 s, have the marker full_matrix: some ten minutes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from counted import assert_counted
from fault_matrix import cells
from planned_faults import environ_with, parse
from processes import Processes

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
CAME_BACK = "All PS tasks go back together"
TASKS = {"ps:0": "ps:0", "ps:1": "ps:1", "chief": "chief:0", "worker": "worker:0"}
#: Passings of a point before a fault of a push, so that the run is well under way again.
PASSINGS = 8
#: What tells a save or a restore from a push; the other points of those moments are left to one process.
OF_A_SAVE, OF_A_RESTORE = ("cut", "write_snapshot"), ("begin", "declare", "open")


def faults_of(cell, every_point):
    """Give the plan of a cell, a list of lines for each of its points."""
    task = TASKS[cell.subject]
    other = "ps:0" if task == "ps:1" else "ps:1"
    restore = f"{other} kill at apply.before nth={PASSINGS}"
    if cell.moment == "restore" and cell.subject == "worker":
        if cell.fault == "stop":
            # P10: it sleeps through all of the restore.
            return [[f"{task} stop at stage.send nth={PASSINGS}", restore]]
        # It waits to be let in again: what it sends is STATUS.
        return [[restore, "chief:0 hold at declare.send", f"{task} kill at status.send"]]
    points = list(cell.points)
    if cell.moment == "save" and cell.subject != "worker":
        points = [item for item in points if item[0] in OF_A_SAVE]
    if cell.moment == "restore":
        points = [item for item in points if item[0] in OF_A_RESTORE]
    lines = []
    for method, point in points if every_point else points[-1:]:
        line = f"{task} {cell.fault} at {method}.{point}"
        if cell.moment == "save":
            lines.append(["chief:0 hold at write_snapshot.send", line] if cell.subject == "worker" else [line])
        elif cell.moment == "restore":
            lines.append([restore, line])
        else:
            lines.append([f"{line} nth={PASSINGS}"])
    return lines


def plan_of(subject, fault, every_point=False):
    """Give the plan of a task and a fault: all moments, one after the other."""
    chosen = [cell for cell in cells() if (cell.subject, cell.fault) == (subject, fault)]
    return [line for cell in chosen for lines in faults_of(cell, every_point) for line in lines]


@pytest.fixture
def played(tmp_path):
    """Play a plan on two PS, a chief and two workers; gives what was printed, after the job has ended exactly."""
    with Processes(tmp_path) as processes:

        def play(plan, sleep_secs=0.5, steps_a_fault=150, more=()):
            return _play(processes, tmp_path, plan, sleep_secs, 300 + steps_a_fault * len(plan), more)

        yield play


def _play(processes, folder, plan, sleep_secs, last_step, more):
    trace, histories = folder / "trace", folder / "histories"
    trace.touch()
    histories.mkdir()
    processes.start(
        "launch", "-m", "globalstep", "launch", "--ps", 2, "--chief", "--workers", 2, "--max-restarts", len(plan),
        JOB, "--last-step", last_step, "--dir", folder / "run", "--say-steps", 5, "--save-steps", 50,
        "--slow-until", trace, len(plan), "--histories", histories, *more,
        env=environ_with("; ".join(plan), trace),
    )  # fmt: skip
    for number, fault in enumerate(parse("; ".join(plan))):
        _until(processes, lambda n=number: len(_lines(trace)) > n, f"{fault} (fault {number + 1} of {len(plan)})")
        if fault.action == "stop":
            restores = processes.output("launch").count(CAME_BACK)
            pid = int(_lines(trace)[number].rpartition("=")[2])
            _until(processes, lambda p=pid: _is_stopped(p), f"sleep of {fault.task}")
            try:
                if fault.task.startswith("worker") and "".join(plan[number + 1 : number + 2]).startswith("ps"):
                    came_back = f"a restore while {fault.task} sleeps"
                    _until(processes, lambda r=restores: processes.output("launch").count(CAME_BACK) > r, came_back)
                processes.pause("launch", sleep_secs)
            finally:
                os.kill(pid, signal.SIGCONT)
    codes = processes.wait(90.0)
    printed = processes.output("launch")
    assert codes == {"launch": 0}, printed
    # Every fault happened, each once, in the order of the plan.
    assert [line.partition(" pid=")[0] for line in _lines(trace)] == [re.sub(" nth=.*", "", line) for line in plan]
    assert_counted(folder / "run", last_step, printed)
    audit = [sys.executable, "-m", "globalstep", "audit", folder / "run", "--history", *histories.iterdir()]
    done = subprocess.run(audit, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return printed


def _until(processes, reached, what):
    processes.until_true("launch", reached, 60.0, what)


def _lines(trace):
    return trace.read_text().splitlines()


def _is_stopped(pid):
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "T"


def restores_in(plan):
    return sum(line.startswith("ps:") and " kill " in line for line in plan)


@pytest.mark.processes
@pytest.mark.parametrize("subject", list(TASKS))
def test_a_task_that_is_killed_at_every_moment(played, subject):
    plan = plan_of(subject, "kill")
    printed = played(plan)
    for task in {line.split()[0] for line in plan if " kill " in line}:
        kills = sum(line.startswith(f"{task} kill") for line in plan)
        assert f"{task} was ended by SIGKILL (exit code 137); restart {kills} of" in printed
    # A PS task that dies makes a restore, though perhaps one with that which it interrupts; a chief that dies just
    # after it has announced one makes another.
    assert max(1, restores_in(plan) - 1) <= printed.count(CAME_BACK) <= restores_in(plan) + (subject == "chief")


@pytest.mark.processes
@pytest.mark.parametrize("subject", ["ps:0", "worker"])
def test_a_task_that_sleeps_at_every_moment(played, subject):
    plan = plan_of(subject, "stop")
    assert played(plan).count(CAME_BACK) == restores_in(plan) == 1


@pytest.mark.processes
def test_messages_that_are_cut_off_lost_doubled_and_late(played):
    plan = [
        "worker:0 cut at stage.send nth=8", "worker:0 cut at commit.reply", "worker:0 drop at push.reply",
        "worker:0 double at stage.send", "worker:0 double at push.send", "worker:0 late at commit.send",
        "worker:0 late at push.send", "chief:0 double at write_snapshot.send", "chief:0 drop at commit.reply",
        "ps:1 cut at commit.before nth=8", "ps:1 cut at commit.after nth=8", "ps:0 cut at push.after nth=8",
        "ps:0 cut at pull.before nth=8", "worker:0 cut at stage.reply", "worker:0 late at stage.send",
        "chief:0 drop at stage.reply", "ps:1 cut at stage.before nth=8",
        "ps:1 cut at stage.after nth=8", "ps:0 cut at push.before nth=8",
    ]  # fmt: skip
    assert CAME_BACK not in played(plan, steps_a_fault=50)


@pytest.mark.processes
@pytest.mark.full_matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["kill", "stop"])
@pytest.mark.parametrize("subject", list(TASKS))
def test_every_point(played, subject, fault):
    played(plan_of(subject, fault, every_point=True), sleep_secs=5.0, steps_a_fault=400)


def test_every_cell_of_kill_and_stop_has_its_part_in_a_plan():
    for cell in cells():
        if cell.fault in ("kill", "stop"):
            for every_point in (False, True):
                lines = [line for part in faults_of(cell, every_point) for line in part]
                assert any(line.startswith(f"{TASKS[cell.subject]} {cell.fault} at ") for line in lines), cell.name
                parse("; ".join(lines))
