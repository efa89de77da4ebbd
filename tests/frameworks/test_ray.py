"""Reducers as Ray actors, and Ray Train's workers on them, in a real cluster of two nodes."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed; make test-frameworks installs it")

import torch
from torch import nn

import reducer_client
from reducer_client import AuthenticationError, ReducerUnavailableError
from reducer_client.arrays import Array
from reducer_client.hosted.failures import NotStartedError
from tests.frameworks.ray_driver import Driver, driver
from tests.support.ports import free_port
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from reducer_client.ray import Pool

pytestmark = pytest.mark.timeout(400)
WORLD = 2
STEPS = 6
MOST_STEPS = 3000
SMALL: dict[str, Any] = {"cpus": 1, "memory": "64MiB"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Driver]:
    with driver() as started:
        yield started


def _net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 3))


def _gradients(model: nn.Module, step: int, rank: int) -> None:
    """Add the gradients of a rank's batch of a step."""
    generator = torch.Generator().manual_seed(step * WORLD + rank)
    inputs = torch.randn(8, 20, generator=generator)
    targets = torch.randint(3, (8,), generator=generator)
    nn.functional.cross_entropy(model(inputs), targets).backward()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _flat(model: nn.Module) -> Array:
    return torch.cat([p.detach().view(-1) for p in model.parameters()]).numpy()


def _expected(steps: int) -> Array:
    """The parameters after these steps of one process, which has the batches of all ranks."""
    torch.set_num_threads(1)
    model = _net()
    optimizer = _optimizer(model)
    for step in range(steps):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for rank in range(WORLD):
            model.zero_grad()
            _gradients(model, step, rank)
            for mean, parameter in zip(total, model.parameters(), strict=True):
                mean += parameter.grad / WORLD
        for mean, parameter in zip(total, model.parameters(), strict=True):
            parameter.grad = mean
        optimizer.step()
    return _flat(model)


def _train(settings: dict[str, Any]) -> None:
    """A training function as any program of Ray Train has it, and what a test wants to see."""
    import ray.train
    import ray.train.torch

    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    seen = _Seen(Path(settings["folder"]), rank)
    model = ray.train.torch.prepare_model(_net())
    optimizer = _optimizer(model)
    for step in range(settings["steps"]):
        model.zero_grad()
        _gradients(model, step, rank)
        optimizer.step()
        if settings["steps"] == MOST_STEPS and seen.comes_back(step):
            break
        if settings["dies"] and step == 2 and rank == 1 and seen.first("died"):
            os._exit(9)
    seen.write(step + 1, _flat(model))


class _Seen:
    """What a rank sees and tells the test, by files in a folder."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank

    def first(self, name: str) -> bool:
        """Whether this is the first call with the name."""
        path = self._folder / name
        exists = path.exists()
        path.touch()
        return not exists

    def comes_back(self, step: int) -> bool:
        """Whether a rank has seen that the first reducer, which was killed, is used again."""
        (self._folder / "training").touch()
        time.sleep(0.01)
        is_back = (self._folder / "restarted").exists() and self._contributions()[0] > 0
        told = torch.tensor([float(is_back)])
        torch.distributed.all_reduce(told)
        return bool(told)

    def _contributions(self) -> list[int]:
        reducers = torch.distributed.group.WORLD.reducer_group.stats()["reducers"]
        return [
            sum(lane["contributions"] for lane in reducers if lane["slot"] == slot)
            for slot in range(WORLD)
        ]

    def write(self, steps: int, parameters: Array) -> None:
        np.save(self._folder / f"parameters-{self._rank}.npy", parameters)
        backend = torch.distributed.get_backend()
        facts = {"steps": steps, "backend": backend, "contributions": self._contributions()}
        (self._folder / f"facts-{self._rank}.json").write_text(json.dumps(facts))


def _fit(pool: Pool, folder: Path, steps: int = STEPS, dies: bool = False) -> str:
    """Train over the pool. Returns what a person can see of the configuration."""
    import ray.train
    from ray.train.torch import TorchTrainer

    import reducer_client.ray

    config = reducer_client.ray.ReducerConfig(pool)
    TorchTrainer(
        _train,
        train_loop_config={"folder": str(folder), "steps": steps, "dies": dies},
        torch_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=WORLD),
        run_config=ray.train.RunConfig(
            storage_path=str(folder / "results"),
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    ).fit()
    return f"{config!r} {config._repr_html_()} {config.to_dict()} {pool!r}"


def _results(folder: Path) -> tuple[dict[str, Any], list[Array]]:
    facts = json.loads((folder / "facts-0.json").read_text())
    return facts, [np.load(folder / f"parameters-{rank}.npy") for rank in range(WORLD)]


def _with_a_worker_that_dies(folder: Path) -> tuple[bytes, str]:
    from reducer_client.ray import reducers

    with reducers(2, **SMALL) as pool:
        return pool.key, _fit(pool, folder, dies=True)


def test_a_training_has_the_bits_of_one_process_and_shows_no_key(
    cluster: Driver, tmp_path: Path
) -> None:
    """Ray Train starts all workers again, since one has died."""
    key, shown = cluster.call(_with_a_worker_that_dies, tmp_path, timeout=300)
    assert (tmp_path / "died").exists()
    facts, parameters = _results(tmp_path)
    assert (facts["steps"], facts["backend"]) == (STEPS, "reducer")
    assert all(facts["contributions"]), "both reducers had a part"
    for found in parameters:
        assert np.array_equal(found, _expected(STEPS))
    texts = [key, key.hex().encode(), base64.urlsafe_b64encode(key), repr(key).encode()]
    assert not [text for text in texts if text in shown.encode()]
    logs = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert len(logs) > 5
    for path in logs:
        assert not [text for text in texts if text in path.read_bytes()], path


def _with_a_reducer_that_is_killed(folder: Path) -> bool:
    import ray

    from reducer_client.ray import reducers

    with reducers(2, **SMALL) as pool:
        first = pool.actors[0]
        before = ray.get(first.pid.remote())

        def kill() -> None:
            wait_until((folder / "training").exists, 200)
            ray.kill(first, no_restart=False)
            wait_until(lambda: ray.get(first.pid.remote()) not in (before, None), 100)
            (folder / "restarted").touch()

        killer = threading.Thread(target=kill)
        killer.start()
        _fit(pool, folder, MOST_STEPS)
        killer.join()
        return ray.get(first.address.remote()) == pool.addresses[0]


def test_a_killed_actor_comes_back_at_its_address_and_costs_no_step(
    cluster: Driver, tmp_path: Path
) -> None:
    assert cluster.call(_with_a_reducer_that_is_killed, tmp_path, timeout=300)
    facts, parameters = _results(tmp_path)
    assert 1 < facts["steps"] < MOST_STEPS
    assert all(facts["contributions"]), "the reducer that came back has a part again"
    for found in parameters:
        assert np.array_equal(found, _expected(facts["steps"]))


def _connect_without_the_key() -> tuple[str, list[float]]:
    from reducer_client.ray import reducers

    with reducers(1, **SMALL) as pool:
        alone: dict[str, Any] = {"job": "alone", "rank": 0, "world_size": 1}
        with pytest.raises(AuthenticationError) as caught:
            reducer_client.connect(pool.addresses, **alone)
        with reducer_client.connect(pool.addresses, key=pool.key, **alone) as group:
            return str(caught.value), group.all_reduce(np.ones(2)).wait(30).tolist()


def test_a_worker_needs_the_key_of_the_pool(cluster: Driver) -> None:
    text, total = cluster.call(_connect_without_the_key)
    assert "key" in text
    assert total == [1.0, 1.0]


def _error_of(count: int, options: dict[str, Any]) -> str:
    import ray

    from reducer_client.ray import reducers

    with pytest.raises((ReducerUnavailableError, ValueError)) as caught, reducers(count, **options):
        pass
    free, all_cpus = ray.available_resources, ray.cluster_resources()["CPU"]
    wait_until(lambda: free()["CPU"] == all_cpus, 30, "all CPUs are free again")
    return str(caught.value)


@pytest.mark.parametrize(
    ("count", "options", "text"),
    [
        (3, {**SMALL, "cpus": 2, "start_timeout": 1.0}, "bundle 3 of 3 fits on no node with"),
        (3, {**SMALL, "strategy": "STRICT_SPREAD", "start_timeout": 1.0}, "bundle 3 of 3 fits"),
        (3, {**SMALL, "strategy": "STRICT_PACK", "start_timeout": 1.0}, "bundle 3 of 3 fits"),
        (1, {**SMALL, "memory": "1TiB", "start_timeout": 1.0}, "a reducer needs 1 CPUs and 1126."),
        (1, {**SMALL, "memory": "1B"}, "memory (command line --memory): got '1'"),
        (0, {}, "count=0, cpus=2: expected at least 1 of each"),
        (1, {"memory": "much"}, "expected a size such as"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_left(
    cluster: Driver, count: int, options: dict[str, Any], text: str
) -> None:
    assert text in cluster.call(_error_of, count, options)


def _beside_another_pool() -> str:
    from reducer_client.ray import reducers

    with (
        reducers(1, **SMALL),
        pytest.raises(ReducerUnavailableError) as caught,
        reducers(2, cpus=2, memory="64MiB", start_timeout=1.0),
    ):
        pass
    return str(caught.value)


def test_a_cluster_that_is_in_use_is_said_to_be(cluster: Driver) -> None:
    text = cluster.call(_beside_another_pool)
    assert "room for 2 bundles, but other programs use it: a reducer needs 2 CPUs" in text


def _lost_node() -> str:
    from reducer_client.ray.actor import ReducerActor

    with pytest.raises(NotStartedError) as caught:
        ReducerActor("192.0.2.9", 2222, bytes(32), [])
    return str(caught.value)


def test_an_actor_on_another_node_says_that_its_address_is_lost(cluster: Driver) -> None:
    text = cluster.call(_lost_node)
    assert "the node of the reducer at 192.0.2.9:2222 is lost, and node 127.0.0.1 does not" in text


def _two_on_a_port(port: int) -> tuple[list[str], str]:
    from reducer_client.ray import reducers

    with reducers(2, **SMALL, ports=(port, port + 5)) as pool:
        addresses = list(pool.addresses)
    return addresses, _error_of(2, {**SMALL, "ports": (port, port)})


def test_reducers_of_a_node_get_different_ports_of_the_range(cluster: Driver) -> None:
    """Both nodes have the loopback address."""
    port = free_port()
    addresses, error = cluster.call(_two_on_a_port, port)
    assert len(set(addresses)) == 2
    assert all(port <= int(address.rpartition(":")[2]) <= port + 5 for address in addresses)
    assert f"no free port in {port} to {port} for another reducer" in error
