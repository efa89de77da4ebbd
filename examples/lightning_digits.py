"""Lightning: the Trainer with a DDPStrategy on the backend "reducer"."""

import lightning
import torch
import torch.distributed as dist
from digits import load, report
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)  # the reducers average

    def on_train_epoch_end(self) -> None:
        accuracy = self.trainer.callback_metrics["accuracy"]
        self.print(f"epoch {self.current_epoch + 1}: accuracy {accuracy:.3f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    training, test = (TensorDataset(*map(torch.from_numpy, part)) for part in load())
    trainer = lightning.Trainer(
        strategy=DDPStrategy(process_group_backend="reducer"),  # <- instead of "ddp"
        accelerator="cpu",
        devices=2,
        max_epochs=8,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(
        Digits(),
        DataLoader(training, batch_size=24, shuffle=True),
        DataLoader(test, batch_size=len(test)),
    )
    if trainer.is_global_zero:
        stats = dist.group.WORLD.reducer_group.stats()
        report(float(trainer.callback_metrics["accuracy"]), stats)


if __name__ == "__main__":
    main()
