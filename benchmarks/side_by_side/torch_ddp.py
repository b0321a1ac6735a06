"""The job with PyTorch's DistributedDataParallel, under torchrun."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.side_by_side import job

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = job.model()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
step = 0
if os.path.exists("run/last.pt"):
    saved = torch.load("run/last.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    print("RESTORED step", step)
parallel = DistributedDataParallel(model)
for x, y in job.batches(rank, step):
    if step >= job.STEPS // world:
        break
    optimizer.zero_grad()
    job.loss_fn(parallel, x, y).backward()
    optimizer.step()
    step += 1
    if rank == 0 and step % (job.SAVE_EVERY // world) == 0:
        os.makedirs("run", exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, "run/writing.pt")
        os.replace("run/writing.pt", "run/last.pt")
        print("SAVED step", step, flush=True)
if rank == 0:
    print("END step", step)
dist.destroy_process_group()
