"""What must hold when a round of the soak is over: values, slots, steps, checkpoint, journal and histories agree."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from soak_fit import EVERY, added, score
from soak_job import TASKS, Model, rows_of, table_faults

import globalstep as gs
from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.tf1.variables.checkpoint_variables import list_variables, load_checkpoint


def expected_values(last_step: int) -> dict[str, np.ndarray]:
    """Give all values but the table's after so many pushes, made one after the other where nothing fails."""
    with gs.Graph().as_default() as graph:
        model = Model(last_step, table=False)
        with gs.Session(graph=graph) as session:
            session.run(gs.global_variables_initializer())
            for _ in range(last_step):
                session.run(model.push)
            variables = gs.global_variables()
            values = session.run(variables)
    return {variable.op_name: value for variable, value in zip(variables, values, strict=True)}


def value_faults(saved: dict[str, np.ndarray], expected: dict[str, np.ndarray], last_step: int) -> Iterator[str]:
    """Compare a checkpoint with what must come of so many pushes, to the last bit."""
    if missing := {*expected, "table"} ^ set(saved):
        yield f"the checkpoint and the graph do not have the same Variables: {sorted(missing)}"
        return
    for name, value in expected.items():
        found = saved[name]
        if found.tobytes() != value.tobytes():
            yield f"{name} is {np.unique(found)[:5]}; {last_step} pushes make it {np.unique(value)[:5]}"
    yield from table_faults(saved["table"], last_step)


def task_faults(table: np.ndarray, pushes: dict[str, int]) -> Iterator[str]:
    """Compare the rows that belong to tasks with the pushes that the journal has of each."""
    for number in range(TASKS):
        task = "/job:chief/task:0" if number == 0 else f"/job:worker/task:{number - 1}"
        found = table[rows_of(number)[0], 0]
        if found != pushes.get(task, 0):
            yield f"the rows of {task} count {found:.0f} pushes, the journal has {pushes.get(task, 0)}"


def fit_faults(run: Path, last_step: int, mode: str) -> Iterator[str]:
    """Check what a job of gs.Trainer left: its parameters, its evaluations, and the best checkpoint."""
    expected = last_step * added(mode)
    for name, value in gs.load(str(run)).items():
        if np.any(value != expected):
            yield f"{name} is {np.unique(value)[:5]}; {last_step} steps make it {expected}"
    history = json.loads((run / "evaluations.json").read_text())
    steps = [entry["step"] for entry in history]
    if steps != sorted(set(steps)) or steps[-1] != last_step:
        yield f"evaluated were steps {steps}"
    for entry in history:
        if entry["metrics"] != {"score": score(entry["step"], last_step)}:
            yield f"the evaluation at step {entry['step']} found {entry['metrics']}"
    for path in run.glob("model.ckpt-*.index*"):
        step = int(path.name.removeprefix("model.ckpt-").partition(".")[0])
        before = max((one for one in steps if one < step), default=0)
        if step // EVERY > before // EVERY and step not in steps:
            yield f"the checkpoint of step {step} was not evaluated, only {steps}"
    best = max(steps, key=lambda step: score(step, last_step))
    kept = {path.name.partition(".index")[0] for path in (run / "best").glob("*.index*")}
    if kept != {f"model.ckpt-{best}"}:
        yield f"the best checkpoint is that of step {best}, and {sorted(kept)} is kept"


def faults_of(folder: Path, last_step: int, durability: str, job: str) -> tuple[list[str], dict]:
    """Check a round that is over.

    Returns:
        What is wrong, and what the audit says.
    """
    run = folder / "run"
    command = [sys.executable, "-m", "globalstep", "audit", str(run), "--json"]
    if job == "session":
        command += ["--history", *map(str, sorted((folder / "answers").iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    if done.returncode or not told.get("proven"):
        return [f"audit: {(told.get('wrong') or []) + (told.get('unreadable') or [])} {done.stderr}"], told
    wrong = []
    step = told["steps"]["global_step"]
    if (step["base"], step["value"]) != (0, last_step):
        wrong.append(f"audit: global_step is {step}, the last step is {last_step}")
    if told["checkpoint_steps"] != {"global_step": last_step}:
        wrong.append(f"the newest checkpoint has {told['checkpoint_steps']}")
    lost = sum(item["lost"] for item in told["incarnations"])
    if durability == "log" and (lost or len(told["incarnations"]) != 1):
        wrong.append(f"a log was kept, and {lost} pushes were lost in {len(told['incarnations'])} incarnations")
    prefix = latest_checkpoint(str(run))
    if prefix != str(run / f"model.ckpt-{last_step}"):
        return [*wrong, f"the newest checkpoint is {prefix}"], told
    if job != "session":
        return [*wrong, *fit_faults(run, last_step, job)], told
    if step["pushes"] != last_step:
        wrong.append(f"audit: global_step is {step}, and each push moves it by 1")
    reader = load_checkpoint(prefix)
    saved = {name: np.asarray(reader.get_tensor(name)) for name, _ in list_variables(prefix)}
    wrong += value_faults(saved, expected_values(last_step), last_step)
    if "table" in saved:
        wrong += task_faults(saved["table"], {task: worker["pushes"] for task, worker in told["workers"].items()})
    return wrong, told
