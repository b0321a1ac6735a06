"""The soak's training script: every accepted push changes known rows by known amounts, whatever fails meanwhile.

Every push brings the same gradients, so that all dense values, slots and the optimizer's own scalars are a function of
the step alone (`soak_checks.py` computes it). Of the table, a Variable split over all PS tasks, it changes rows that
belong to its task, one on each PS task, and rows chosen by chance. What each process does and is told is added to its
history at once (docs/design/histories.md).

Steps are made in bursts, no further than the clock allows, so that the job lasts as long as the faults do. A program
that finds Variables that do not agree in one cut ends with exit code 9.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from soak_windows import stay

import globalstep as gs

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from recorded_history import extremes
from session_history import SessionHistory

#: How many tasks run sessions: the chief and the workers.
TASKS = 5
#: 5 MB of float32, more than a third of all bytes: every PS task holds a third of the rows.
ROWS, COLUMNS = 20000, 64
SHARDS = 3
#: A task's rows lie so far apart that each PS task has one of them.
SPREAD = ROWS // SHARDS + 1
#: Rows below it belong to tasks, on each PS task; chance takes the others.
OWNED = 8
DRAWN = 6
WRONG = 9


def number_of(job, index):
    """Number a task among those that run sessions: the chief is 0."""
    return 0 if job == "chief" else index + 1


def rows_of(number):
    """Give the rows of the table that belong to a task: one on each PS task."""
    return [number + shard * SPREAD for shard in range(SHARDS)]


def drawn_rows(rng):
    """Draw rows that belong to no task; some come twice."""
    rows = [shard * SPREAD + rng.randrange(OWNED, SPREAD - OWNED) for shard in rng.choices(range(SHARDS), k=DRAWN - 1)]
    return [*rows, rows[0]]


class Model:
    """The Variables of the job, and the one push that it makes again and again.

    Args:
        last_step: Where the job ends; the learning rates change on the way.
        table: Whether there is a table.
    """

    def __init__(self, last_step, table=True):
        self.step = gs.train.get_or_create_global_step()
        self.sums = [gs.Variable(np.zeros(size, "f4"), name=f"sum_{size}") for size in (1, 3, 1000, 30000)]
        self.momentum = gs.Variable(np.zeros(2000, "f8"), name="momentum")
        self.scheduled = gs.Variable(np.zeros((40, 7), "f8"), name="scheduled")
        self.adam = gs.Variable(np.zeros(777, "f4"), name="adam")
        self.counter = gs.Variable(np.array(0, "i8"), name="counter", trainable=False)
        rate = gs.train.piecewise_constant(self.step, [last_step // 3, 2 * last_step // 3], [1.0, 2.0, 0.5])
        added = [_down(one) for one in self.sums]
        self.table = self.rows = None
        if table:
            self.table = gs.Variable(np.zeros((ROWS, COLUMNS), "f4"), name="table")
            self.rows = gs.placeholder("int64", [None])
            ones = gs.constant(-np.ones((SHARDS + DRAWN, COLUMNS), "f4"))
            added.append((gs.IndexedSlices(ones, self.rows), self.table))
        changes = [
            gs.train.GradientDescentOptimizer(1.0).apply_gradients(added, global_step=self.step),
            gs.train.MomentumOptimizer(1.0, 1.0).apply_gradients([_down(self.momentum)]),
            gs.train.GradientDescentOptimizer(rate).apply_gradients([_down(self.scheduled)]),
            gs.train.AdamOptimizer(0.01).apply_gradients([_down(self.adam)]),
            gs.assign_add(self.counter, 2),
        ]
        self.push = gs.group(*changes)
        self.all = [self.step, self.counter, *self.sums, self.momentum, self.table]

    def disagreement(self, session):
        """Read all in one cut and give what is wrong with what no history adds up; "" where it is as it must be."""
        step, *_, momentum, table = session.run(self.all)
        if step is None:
            return ""
        wrong = [f"momentum is {np.unique(momentum)}"] if np.any(momentum != step * (step + 1) / 2) else []
        wrong += table_faults(table, int(step))
        return f"at step {step}: {'; '.join(wrong)}" if wrong else ""


def table_faults(table, step):
    """Give what is wrong with the table: each push changed a row of its task on every PS task, and DRAWN others."""
    wrong = []
    if np.any(table != table[:, :1]):
        wrong.append("rows of the table are torn")
    counts = table[:, 0].astype("f8")
    for number in range(TASKS):
        if len(set(counts[rows_of(number)])) != 1:
            wrong.append(f"the rows of task {number} are {counts[rows_of(number)]}")
    own = sum(counts[rows_of(number)[0]] for number in range(TASKS))
    if own != step or counts.sum() != (SHARDS + DRAWN) * step:
        wrong.append(f"tasks' rows count {own:.0f} pushes, all rows {counts.sum():.0f} changes")
    return wrong


def _down(variable):
    return gs.constant(np.full(variable.shape.as_list(), -1.0, variable.dtype.as_numpy_dtype)), variable


class Windows(gs.train.CheckpointSaverListener):
    """Stays in the windows of the chief's saves, and of those at the end."""

    def __init__(self, folder, task, last_step):
        self._folder, self._task, self._last_step = folder, task, last_step

    def before_save(self, session, global_step_value):
        """See CheckpointSaverListener."""
        stay(self._folder, "last save" if global_step_value >= self._last_step else "save", self._task)

    def end(self, session, global_step_value):
        """See CheckpointSaverListener."""
        stay(self._folder, "saved", self._task)


def history_of(model, path, number, last_step):
    """Give the hook that writes down what a task does and is told."""
    rows = [row for task in range(TASKS) for row in rows_of(task)]

    def seen(values):
        step, counter, *sums, _, table = values
        read = {"global_step": int(step), "counter": int(counter)}
        for one, value in zip(model.sums, sums, strict=True):
            read |= extremes(one.op_name, value)
        return read | {f"table[{row}]": float(table[row, 0]) for row in rows}

    start = seen([0, 0, *[0] * len(model.sums), 0, np.zeros((ROWS, 1))])
    add = {name: 1 for name in start if not name.startswith("table")} | {"counter": 2}
    add |= {f"table[{row}]": 1 for row in rows_of(number)}
    return SessionHistory(path, model.all, model.step, seen, add, start, last_step)


def fail(text):
    """End the program: an invariant is broken."""
    print(f"WRONG {text}", flush=True)
    sys.stdout.flush()
    os._exit(WRONG)


def main():
    """Train until the last step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--last-step", type=int, required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--answers", required=True, help="folder for a file of each process")
    parser.add_argument("--windows", required=True, help="folder for tasks that are in a window")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--began", type=float, required=True, help="when the faults began, by the clock on the wall")
    parser.add_argument("--secs", type=float, required=True, help="how long they last")
    parser.add_argument("--save-steps", type=int, default=60)
    args = parser.parse_args()
    # Whoever finds this process hanging asks it where.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    number, name = number_of(task["type"], task["index"]), f"{task['type']}:{task['index']}"
    rng = random.Random(f"{args.seed}/{number}/{os.environ.get('GLOBALSTEP_FAULTS_START')}")
    model = Model(args.last_step)
    path = f"{args.answers}/{task['type']}-{task['index']}-{os.getpid()}.jsonl"
    history = history_of(model, path, number, args.last_step)
    pause, runs, step = threading.Event(), 0, 0

    def allowed():
        part = (time.time() - args.began) / args.secs
        return part >= 1.0 or step < part * (args.last_step - 50)

    windows = Windows(args.windows, name, args.last_step)
    saver = gs.train.CheckpointSaverHook(args.dir, save_steps=args.save_steps, listeners=[windows])
    with gs.train.MonitoredTrainingSession(
        checkpoint_dir=args.dir,
        hooks=[gs.train.StopAtStepHook(last_step=args.last_step), history],
        chief_only_hooks=[saver],
        save_checkpoint_steps=None,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=50,
    ) as session:
        print("ready", flush=True)
        while not session.should_stop():
            if not allowed():
                pause.wait(0.02)
                read = session.run(model.step)
                step = step if read is None else int(read)
                continue
            feed = {model.rows: [*rows_of(number), *drawn_rows(rng)]}
            _, read = session.run([model.push, model.step], feed)
            step = step if read is None else int(read)
            runs += 1
            if runs % 20 == 0 and not session.should_stop():
                wrong = model.disagreement(session)
                if wrong:
                    fail(wrong)
        if task["type"] != "chief":
            stay(args.windows, "leaving", name)
        below = session._tf_sess()
        if below is not None:
            print(f"retries {sum(below.cluster.retries.view().values())}", flush=True)
    print(f"done after {runs} runs", flush=True)


if __name__ == "__main__":
    main()
