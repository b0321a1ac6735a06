"""`gs.fit` whose chief touches FILE.reached after its last step, before it saves that, and waits for FILE.

Each step adds 1 to all values, which lie on all PS. Worker 1 goes on with its third step only then, so that it waits
for the last save.
"""

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np

import globalstep as gs

go_on, reached, steps = Path(sys.argv[1]), Path(f"{sys.argv[1]}.reached"), int(sys.argv[2])
is_other = json.loads(os.environ["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
calls = iter(range(1_000_000))


def wait_for(path):
    while not path.exists():
        threading.Event().wait(0.05)


def loss_fn(params, batch):
    if is_other and next(calls) == 2:
        wait_for(reached)
    return 0.0, {name: np.full_like(value, -1) for name, value in params.items()}


class Held(gs.Callback):
    def on_step(self, trainer, step, loss):
        if step == steps:
            reached.touch()
            wait_for(go_on)


params = {f"sum_{size}": np.zeros(size, np.float32) for size in (3, 1000, 70000)}
options = {"config": gs.ConfigProto(run_policy=gs.RunPolicy(spread_above=1)), "checkpoint_every_steps": 40}
optimizer = gs.optim.SGD(1.0)
result = gs.fit(params, loss_fn, [0], optimizer=optimizer, steps=steps, run_dir="run", callbacks=[Held()], **options)
print("RESULT", result.step, flush=True)
