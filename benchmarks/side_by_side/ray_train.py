"""The job with Ray Train."""

import os
import tempfile

import ray.train
import ray.train.torch
import torch

from benchmarks.side_by_side import job


def train(config):
    world, rank = ray.train.get_context().get_world_size(), ray.train.get_context().get_world_rank()
    model = ray.train.torch.prepare_model(job.model())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    step = 0
    if ray.train.get_checkpoint():
        with ray.train.get_checkpoint().as_directory() as folder:
            saved = torch.load(os.path.join(folder, "state.pt"))
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        print("RESTORED step", step, flush=True)
    for x, y in job.batches(rank, step):
        if step >= job.STEPS // world:
            break
        optimizer.zero_grad()
        job.loss_fn(model, x, y).backward()
        optimizer.step()
        step += 1
        if step % (job.SAVE_EVERY // world) == 0:
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = None
                if rank == 0:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, os.path.join(folder, "state.pt"))
                    checkpoint = ray.train.Checkpoint.from_directory(folder)
                    print("SAVED step", step, flush=True)
                ray.train.report({"step": step}, checkpoint=checkpoint)
    if rank == 0:
        print("END step", step, flush=True)


ray.init(num_cpus=2, include_dashboard=False)
trainer = ray.train.torch.TorchTrainer(
    train,
    scaling_config=ray.train.ScalingConfig(num_workers=2),
    run_config=ray.train.RunConfig(
        storage_path=os.path.abspath("run"), name="job", failure_config=ray.train.FailureConfig(max_failures=3)
    ),
)
trainer.fit()
