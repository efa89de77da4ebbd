"""DistributedDataParallel on the backend "reducer".

All collectives of the default process group go through the reducers: the gradients, and DDP's own
broadcasts.
"""

import torch
import torch.distributed as dist
from digits import load, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 8


def train(model: nn.Module, loader: DataLoader) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # the mean of the gradients comes from the reducers
            optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1} of {EPOCHS}: loss {mean.item():.4f}", flush=True)


def main() -> None:
    dist.init_process_group("reducer")  # <- instead of "gloo" or "nccl"
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    training, test = ([torch.from_numpy(array) for array in part] for part in load())
    dataset = TensorDataset(*training)
    model = DistributedDataParallel(net)
    train(model, DataLoader(dataset, batch_size=24, sampler=DistributedSampler(dataset)))
    if dist.get_rank() == 0:
        right = (net(test[0]).argmax(1) == test[1]).float().mean()
        report(float(right), dist.group.WORLD.reducer_group.stats())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
