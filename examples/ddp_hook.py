"""DistributedDataParallel on gloo, with a communication hook that reduces the gradients.

This is for programs that keep their process group: gloo, nccl or mpi, which still does everything
except the gradients.
"""

import torch
import torch.distributed as dist
from digits import load, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import reducer_client
import reducer_client.torch

EPOCHS = 8


def train(model: nn.Module, loader: DataLoader, group: reducer_client.Group) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # the mean of the gradients comes from the reducers
            optimizer.step()
        mean = group.all_reduce(loss.detach().numpy(), op="mean", key="loss").wait()
        if group.rank == 0:
            print(f"epoch {epoch + 1} of {EPOCHS}: loss {mean:.4f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    training, test = ([torch.from_numpy(array) for array in part] for part in load())
    dataset = TensorDataset(*training)
    loader = DataLoader(dataset, batch_size=24, sampler=DistributedSampler(dataset))
    with reducer_client.connect() as group:  # <- addresses, job and rank from the environment
        model = DistributedDataParallel(net)
        reducer_client.torch.attach(model, group)  # <- gradients go through the reducers
        train(model, loader, group)
        if group.rank == 0:
            right = (net(test[0]).argmax(1) == test[1]).float().mean()

            report(float(right), group.stats())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
