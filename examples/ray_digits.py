"""Ray Train: a TorchTrainer whose workers train over reducers in the same Ray cluster."""

import tempfile

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from digits import load, report
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from reducer_client.ray import ReducerConfig, reducers

EPOCHS = 8


def train() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = ray.train.torch.prepare_model(net)
    training, test = (TensorDataset(*map(torch.from_numpy, part)) for part in load())
    loader = ray.train.torch.prepare_data_loader(DataLoader(training, batch_size=24, shuffle=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # the mean of the gradients comes from the reducers
            optimizer.step()
    images, labels = test[:]
    right = (net(images).argmax(1) == labels).float().mean()
    stats = dist.group.WORLD.reducer_group.stats()
    metrics = {"accuracy": float(right), "reducers": stats["reducers"]}
    with tempfile.TemporaryDirectory() as folder:
        torch.save(net.state_dict(), f"{folder}/net.pt")
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def main() -> None:
    ray.init(num_cpus=4, log_to_driver=False)  # on a cluster: ray.init()
    with reducers(2, cpus=1, memory="256MiB") as pool:  # <- actors on CPU nodes
        result = TorchTrainer(
            train,
            torch_config=ReducerConfig(pool),  # <- instead of TorchConfig()
            scaling_config=ScalingConfig(num_workers=2),
        ).fit()
    report(result.metrics["accuracy"], result.metrics)


if __name__ == "__main__":
    main()
