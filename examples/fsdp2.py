"""FSDP2 on the backend "reducer": parameters, gradients and optimizer state are sharded.

All-gather and reduce-scatter go through the reducers. At the end torch.distributed.checkpoint
writes a sharded checkpoint and reads it again.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from digits import load, report
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 5


def make_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def train(model: nn.Module, loader: DataLoader) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)  # only this rank's shards
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1} of {EPOCHS}: loss {mean.item():.4f}", flush=True)


def save_and_load(model: nn.Module) -> nn.Module:
    """Write a checkpoint, to which each rank adds its shards, and load it into a new model."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save(get_model_state_dict(model), checkpoint_id=folder[0])
    fresh = make_net(seed=1)
    state = get_model_state_dict(fresh)
    dcp.load(state, checkpoint_id=folder[0])
    set_model_state_dict(fresh, state)
    return fresh


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    dist.init_process_group("reducer")  # <- instead of "gloo" or "nccl"
    training, test = ([torch.from_numpy(array) for array in part] for part in load())
    dataset = TensorDataset(*training)
    model = make_net(seed=0)
    train(model, DataLoader(dataset, batch_size=24, sampler=DistributedSampler(dataset)))
    found = accuracy(save_and_load(model), *test)  # on all ranks, because it gathers shards
    if dist.get_rank() == 0:
        report(found, dist.group.WORLD.reducer_group.stats())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
