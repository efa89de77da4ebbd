"""Accelerate: the program makes the process group first, and the Accelerator uses it."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from digits import load, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 8


def train(
    accelerator: Accelerator, model: nn.Module, data: DataLoader, optimizer: torch.optim.Optimizer
) -> None:
    for epoch in range(EPOCHS):
        for images, labels in data:
            with accelerator.accumulate(model):  # gradients are reduced every second step
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), "mean")
        accelerator.print(f"epoch {epoch + 1} of {EPOCHS}: loss {mean.item():.4f}", flush=True)


@torch.no_grad()
def measure(accelerator: Accelerator, model: nn.Module, data: DataLoader) -> float:
    right = []
    for images, labels in data:
        right.append(accelerator.gather_for_metrics(model(images).argmax(1) == labels))
    return float(torch.cat(right).float().mean())


def main() -> None:
    dist.init_process_group("reducer")  # <- the only new line
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    training, test = (TensorDataset(*map(torch.from_numpy, part)) for part in load())
    model, optimizer, data, test_data = accelerator.prepare(
        net,
        torch.optim.AdamW(net.parameters(), lr=4e-3),
        DataLoader(training, batch_size=12, shuffle=True),
        DataLoader(test, batch_size=64),
    )
    train(accelerator, model, data, optimizer)
    accuracy = measure(accelerator, model, test_data)
    if accelerator.is_main_process:
        report(accuracy, dist.group.WORLD.reducer_group.stats())
    accelerator.end_training()


if __name__ == "__main__":
    main()
