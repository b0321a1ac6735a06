"""The job with gs.fit."""

import globalstep as gs
from benchmarks.side_by_side import job


def batches(rank, start):
    return job.batches(rank, start)


result = gs.fit(
    job.model(),
    job.loss_fn,
    batches,
    optimizer=gs.optim.Adam(1e-3),
    steps=job.STEPS,
    run_dir="run",
    checkpoint_every_steps=job.SAVE_EVERY,
)
if result.is_chief:
    print("END step", result.step)
