"""The soak's job of gs.Trainer: every step adds 1 to every parameter, and checkpoints are evaluated as they are saved.

With units of work and synchronous steps the mean of what several workers give is 1 too; a round of local steps adds as
many as it has. An evaluation says how far the step is from the middle of the run, so that the best one is known.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import threading
import time

import numpy as np
from soak_windows import stay

import globalstep as gs

#: What a round of local steps adds.
LOCAL = 4
EVERY = 60
SIZES = (1, 3, 1000, 30000)
WRONG = 9


def score(step, last_step):
    """Give what the evaluation at a step must have found."""
    return -abs(step - last_step / 2)


def added(mode):
    """Give what a step adds to every parameter."""
    return LOCAL if mode == "local" else 1


def main():
    """Train until the last step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", required=True)
    parser.add_argument("--last-step", type=int, required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--windows", required=True, help="folder for tasks that are in a window")
    parser.add_argument("--answers", required=True, help="folder where a task that trains makes a file")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--began", type=float, required=True, help="when the faults began, by the clock on the wall")
    parser.add_argument("--secs", type=float, required=True, help="how long they last")
    args, _ = parser.parse_known_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    name, pause = f"{task['type']}:{task['index']}", threading.Event()

    def found(params, _):
        value = params["3"][0]
        if any(np.any(param != value) for param in params.values()):
            print(f"WRONG an evaluation found {[np.unique(param)[:5] for param in params.values()]}", flush=True)
            os._exit(WRONG)
        step = int(value) // added(args.mode)
        stay(args.windows, "last evaluation" if step >= args.last_step else "evaluation", name)
        return score(step, args.last_step)

    def allowed(step):
        part = (time.time() - args.began) / args.secs
        return part >= 1.0 or step < part * (args.last_step - 50)

    def loss(params, _):
        return 1.0, {key: -np.ones_like(param) for key, param in params.items()}

    optimizer, options = gs.optim.SGD(1.0), {}
    if args.mode == "sync":
        optimizer = gs.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=3, total_num_replicas=5)
    elif args.mode == "units":
        options["units"] = gs.WorkUnits(4)
    elif args.mode == "local":
        options["local_steps"] = gs.LocalSteps(gs.optim.SGD(1.0), every=LOCAL)
    trainer = gs.Trainer(
        {str(size): np.zeros(size, np.float32) for size in SIZES},
        loss,
        optimizer=optimizer,
        steps=args.last_step,
        run_dir=args.dir,
        evaluate=gs.Evaluate([0], {"score": found}, every_steps=EVERY),
        **options,
    )
    with trainer:
        print("ready", flush=True)
        open(f"{args.answers}/{task['type']}-{task['index']}-{os.getpid()}", "w").close()
        while not trainer.done:
            if not allowed(trainer.global_step):
                pause.wait(0.02)
            elif args.mode == "units":
                trainer.unit([0])
            else:
                trainer.step(*[0] * (LOCAL if args.mode == "local" else 1))
        if not trainer.is_chief:
            stay(args.windows, "leaving", name)
    print(f"done at step {trainer.result.step}", flush=True)


if __name__ == "__main__":
    main()
