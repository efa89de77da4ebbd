"""Parameter servers and workers, by the flags of TensorFlow's distributed programs.

Each task runs this program with its own --job_name and --task_index. The parameters are on the
parameter servers, which apply the gradients of each worker as they come, or with --sync_replicas
those of all workers but one in common steps. Each parameter server has a backup of the other: kill
the second one, and the training goes on without a loss.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from digits import load
from torch import nn

from reducer.optimizers import Adagrad
from reducer_client.tables import Async, KOfN, ParameterServer, roles
from reducer_client.torch import ServerOptimizer

BATCH = 32


def join(
    ps: ParameterServer, role: roles.Role, net: nn.Module, options: argparse.Namespace
) -> ServerOptimizer:
    """The chief makes the table, or restores it. The others take part in it."""
    if not role.is_chief:
        return ServerOptimizer(net, ps.attach("net"))
    if options.checkpoint_dir and any(Path(options.checkpoint_dir).glob("step-*")):
        return ServerOptimizer(net, ps.load(options.checkpoint_dir)["net"])
    adagrad = Adagrad(options.rate, convention="tf")
    mode = KOfN(role.workers - 1) if options.sync_replicas else Async()
    return ServerOptimizer.create(net, ps, optimizer=adagrad, mode=mode, name="net")


def train(
    net: nn.Module, optimizer: ServerOptimizer, role: roles.Role, options: argparse.Namespace
) -> None:
    images, labels = (torch.from_numpy(array) for array in load()[0])
    random = torch.Generator().manual_seed(role.index)
    while (step := optimizer.table.step) < options.steps:  # of all workers
        batch = torch.randint(len(images), (BATCH,), generator=random)
        loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- pushes the gradients, pulls the parameters
        if role.is_chief and step // 100 < optimizer.table.step // 100:
            print(f"step {optimizer.table.step}: loss {loss:.4f}", flush=True)


def work(role: roles.Role, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    with role.parameter_server(replicas=int(len(role.reducers) > 1)) as ps:
        optimizer = join(ps, role, net, options)
        if role.is_chief and options.checkpoint_dir:
            ps.supervise(options.checkpoint_dir, every_seconds=600)
        train(net, optimizer, role, options)
        counts = optimizer.counts
        print(f"worker {role.index}: {counts.applied} pushes applied, {counts.dropped} dropped")
        if role.is_chief:
            images, labels = (torch.from_numpy(array) for array in load()[1])
            right = (net(images).argmax(1) == labels).float().mean()
            print(f"step {optimizer.table.step}: accuracy {right:.3f}", flush=True)
            if options.checkpoint_dir:
                ps.save(options.checkpoint_dir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    roles.add_flags(parser)
    parser.add_argument("--sync_replicas", action="store_true", help="common steps, all but one")
    parser.add_argument("--steps", type=int, default=3000, help="global step at which all stop")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate of Adagrad")
    parser.add_argument("--checkpoint_dir", default="", help="saves there, and restores")
    options = parser.parse_args()
    role = roles.find_role(options)
    if role.kind == "ps":
        registry = Path(tempfile.mkdtemp()) / "registry"  # of this run
        role.serve("--metrics-port", "0", "--registry", str(registry))  # does not return
    work(role, options)


if __name__ == "__main__":
    main()
