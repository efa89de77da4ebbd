"""A program written for Horovod. Only its import has changed."""

import torch
from digits import load, report
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import reducer_client.horovod as hvd  # <- instead of horovod.torch

EPOCHS = 8


def train(model: nn.Module, loader: DataLoader) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # reduces gradients while it computes others
            optimizer.step()
        mean = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1} of {EPOCHS}: loss {mean.item():.4f}", flush=True)


def main() -> None:
    hvd.init()
    torch.manual_seed(hvd.rank())
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    training, test = ([torch.from_numpy(array) for array in part] for part in load())
    dataset = TensorDataset(*training)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    train(net, DataLoader(dataset, batch_size=24, sampler=sampler))
    if hvd.rank() == 0:
        right = (net(test[0]).argmax(1) == test[1]).float().mean()
        report(float(right), hvd.stats())
    hvd.shutdown()


if __name__ == "__main__":
    main()
