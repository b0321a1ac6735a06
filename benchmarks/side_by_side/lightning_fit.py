"""The job with Lightning."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from benchmarks.side_by_side import job


class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return job.batches(rank, trainer.global_step)


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = job.model()

    def training_step(self, batch):
        return job.loss_fn(self.net, *batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


class Notes(lightning.Callback):
    def on_train_start(self, trainer, module):
        if trainer.is_global_zero and trainer.global_step:
            print("RESTORED step", trainer.global_step, flush=True)


saving = ModelCheckpoint("run", save_last=True, every_n_train_steps=job.SAVE_EVERY // 2)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_steps=job.STEPS // 2,
    callbacks=[saving, Notes()],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Regression(), torch.utils.data.DataLoader(Batches(), batch_size=None), ckpt_path="last")
if trainer.is_global_zero:
    print("END step", trainer.global_step)
