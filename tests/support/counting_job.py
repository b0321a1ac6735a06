"""A training script for the failure tests: every accepted push adds exactly 1 to every Variable.

So at any cut over the shards each element of each Variable equals global_step, whatever failed before. Each task
says what it does on its standard output, a line each: `step N` now and then, `gap S` after a run that took long,
`done after N runs`. A task that finds a Variable that does not agree ends with exit code 9.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

import globalstep as gs


def agree(values, step):
    """Whether every element of every value is `step`."""
    return all(np.all(value == step) for value in values)


def is_long(path, lines):
    """Whether a file has so many lines."""
    try:
        return len(Path(path).read_text().splitlines()) >= int(lines)
    except FileNotFoundError:
        return False


class Held(gs.train.CheckpointSaverListener):
    """Holds the save of the last step: touches FILE.reached, and goes on once FILE is there."""

    def __init__(self, path, last_step):
        self._go_on, self._reached, self._last_step = Path(path), Path(f"{path}.reached"), last_step

    def before_save(self, session, global_step_value):
        if global_step_value >= self._last_step:
            self._reached.touch()
            while not self._go_on.exists():
                threading.Event().wait(0.05)


def history_of(args, everything):
    """Give a hook that writes a history (docs/design/histories.md)."""
    from recorded_history import extremes
    from session_history import SessionHistory

    def seen(values):
        read = {"global_step": int(values[-1])}
        for one, value in zip(everything[:-1], values, strict=False):
            read |= extremes(one.op_name, value)
        return read

    path, start = Path(args.histories, f"{os.getpid()}.jsonl"), seen([0] * len(everything))
    return SessionHistory(path, everything, None, seen, dict.fromkeys(start, 1), start, args.last_step)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--last-step", type=int, required=True)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--save-steps", type=int, default=100)
    parser.add_argument("--say-steps", type=int, default=50, help="own runs between two lines")
    parser.add_argument("--verbose", action="store_true", help="show what the library logs")
    parser.add_argument("--pause-secs", type=float, default=0.0, help="time that the computation of a step takes")
    parser.add_argument(
        "--slow-until", nargs=2, metavar=("FILE", "LINES"), help="10 steps a second until FILE is so long"
    )
    parser.add_argument("--histories", metavar="DIR", help="write down there what this process does and is told")
    parser.add_argument("--hold-last", metavar="FILE", help="hold the save of the last step until FILE is there")
    args = parser.parse_args()
    slow = args.slow_until is not None
    if args.verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")

    sums = [gs.Variable(np.zeros(size), name=f"sum_{size}") for size in (1, 3, 1000, 70000)]
    global_step = gs.train.get_or_create_global_step()
    loss = -gs.add_n([gs.reduce_sum(one) for one in sums])
    train_op = gs.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=global_step)
    hooks = [gs.train.StopAtStepHook(last_step=args.last_step)]
    everything = [*sums, global_step]
    if args.histories:
        hooks.append(history_of(args, everything))
    saving = {"save_checkpoint_steps": args.save_steps}
    if args.hold_last:
        held = Held(args.hold_last, args.last_step)
        saver = gs.train.CheckpointSaverHook(args.dir, save_steps=args.save_steps, listeners=[held])
        saving = {"save_checkpoint_steps": None, "save_checkpoint_secs": None, "chief_only_hooks": [saver]}
    with gs.train.MonitoredTrainingSession(
        checkpoint_dir=args.dir, hooks=hooks, log_step_count_steps=20, **saving
    ) as session:
        print("ready", flush=True)
        runs, before = 0, time.monotonic()
        while not session.should_stop():
            slow = slow and not is_long(*args.slow_until)
            if args.pause_secs or slow:
                threading.Event().wait(max(args.pause_secs, 0.1 * slow))
            session.run(train_op)
            now = time.monotonic()
            if now - before > 0.5:
                print(f"gap {now - before:.2f} until {now:.3f}", flush=True)
            before = now
            runs += 1
            if runs % args.say_steps == 0 and not session.should_stop():
                *values, step = session.run(everything)
                print(f"step {step}", flush=True)
                if not agree(values, step):
                    print(f"wrong at step {step}: {[np.unique(value) for value in values]}", flush=True)
                    sys.exit(9)
    print(f"done after {runs} runs", flush=True)


if __name__ == "__main__":
    main()
