"""Workers come and go: kill one, or start another, in the middle of the training.

Each worker runs this program. The first two found the job. A worker that comes later takes over the
model, the optimizer and the place in the data, and goes on with the others.
"""

import torch
from digits import load, report
from torch import nn

from reducer_client.torch import Elastic

EPOCHS = 8


def train(elastic: Elastic, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    shards = elastic.shards(len(images), batch=24)  # <- instead of a DistributedSampler
    while shards.epoch < EPOCHS:
        for indices in shards:
            if indices:  # the last samples of an epoch may be the other workers'
                loss = nn.functional.cross_entropy(model(images[indices]), labels[indices])
                loss.backward()
            if elastic.step():  # <- instead of optimizer.step() and zero_grad()
                print(f"step {elastic.steps}: {elastic.world_size} workers", flush=True)
        if elastic.rank == 0:
            print(f"epoch {shards.epoch} of {EPOCHS}: loss {loss:.4f}", flush=True)


def main() -> None:
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    training, test = ([torch.from_numpy(array) for array in part] for part in load())
    with Elastic(net, optimizer, workers=2, job="digits") as elastic:  # <- reducers: environment
        train(elastic, net, *training)
        if elastic.rank == 0:
            right = (net(test[0]).argmax(1) == test[1]).float().mean()

            report(float(right), elastic.group.stats())


if __name__ == "__main__":
    main()
