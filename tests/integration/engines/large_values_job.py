"""A training script whose values are larger than the /dev/shm of a container; every push adds 1 to each element."""

from __future__ import annotations

import argparse
import threading

import numpy as np

import globalstep as gs

#: 80 MiB.
COUNT = 20 * 2**20

parser = argparse.ArgumentParser()
parser.add_argument("--last-step", type=int, required=True)
parser.add_argument("--dir", required=True)
args = parser.parse_args()
large = gs.Variable(np.zeros(COUNT, np.float32), name="large")
global_step = gs.train.get_or_create_global_step()
train_op = gs.train.GradientDescentOptimizer(1.0).minimize(-gs.reduce_sum(large), global_step=global_step)
hooks = [gs.train.StopAtStepHook(last_step=args.last_step)]
with gs.train.MonitoredTrainingSession(checkpoint_dir=args.dir, hooks=hooks) as session:
    while not session.should_stop():
        value, step = session.run([large, global_step])
        assert np.all(value == step), (np.unique(value), step)
        if session.should_stop():  # the other one has made the last step since
            break
        session.run(train_op)
        print("ran", flush=True)
        threading.Event().wait(0.1)
print("ended", flush=True)
