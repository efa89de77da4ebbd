"""Fewer bytes for nearly the same model: gradients as bfloat16, or only the largest hundredth.

The program trains three times, each with another hook of DistributedDataParallel, and prints the
accuracy and the bytes saved of each.
"""

import torch
import torch.distributed as dist
from digits import load, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import reducer_client
from reducer_client.torch import ReductionState, attach, attach_topk

EPOCHS = 6
METHODS = {
    "float32": lambda model, group: attach(model, group),
    "bfloat16": lambda model, group: attach(model, group, wire_dtype="bfloat16"),  # <- half
    "top 1 %": lambda model, group: attach_topk(model, group, ratio=0.01),  # <- error feedback
}


def make_model() -> DistributedDataParallel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    return DistributedDataParallel(net)


def train(model: nn.Module, loader: DataLoader) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def measure(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    dist.init_process_group("gloo")
    training, test = ([torch.from_numpy(array) for array in part] for part in load())
    dataset = TensorDataset(*training)
    loader = DataLoader(dataset, batch_size=24, sampler=DistributedSampler(dataset))
    with reducer_client.connect() as group:
        for name, start in METHODS.items():
            model = make_model()
            state: ReductionState = start(model, group)
            train(model, loader)
            accuracy = measure(model.module, *test)
            ratio = state.bytes_reduced / state.bytes_on_wire * 2  # sent and received
            if group.rank == 0:
                print(
                    f"{name:9} accuracy {accuracy:.3f}, {ratio:.1f} times fewer bytes", flush=True
                )
        if group.rank == 0:
            report(accuracy, group.stats())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
