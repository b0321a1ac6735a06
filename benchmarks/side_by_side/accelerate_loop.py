"""The job with Accelerate, under torchrun."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

from benchmarks.side_by_side import job

settings = ProjectConfiguration(project_dir="run", automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(cpu=True, project_config=settings)
model = job.model()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
step = 0
if os.path.isdir("run/checkpoints"):
    newest = max(os.listdir("run/checkpoints"), key=lambda name: int(name.removeprefix("checkpoint_")))
    accelerator.load_state(os.path.join("run/checkpoints", newest))
    count = int(newest.removeprefix("checkpoint_")) + 1
    accelerator.project_configuration.iteration = count
    step = count * (job.SAVE_EVERY // accelerator.num_processes)
    accelerator.print("RESTORED step", step)
for x, y in job.batches(accelerator.process_index, step):
    if step >= job.STEPS // accelerator.num_processes:
        break
    optimizer.zero_grad()
    accelerator.backward(job.loss_fn(model, x, y))
    optimizer.step()
    step += 1
    if step % (job.SAVE_EVERY // accelerator.num_processes) == 0:
        accelerator.save_state()
        accelerator.print("SAVED step", step, flush=True)
accelerator.print("END step", step)
accelerator.end_training()
