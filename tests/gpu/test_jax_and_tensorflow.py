"""JAX and TensorFlow on a real GPU, where they are installed with their CUDA parts."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import gpu_job
from tests.support.gpu_job import Job, enter, leave
from tests.support.ports import free_ports
from tests.support.ranks import Tell, start_ranks
from tests.support.reducers import Reducers

pytestmark = pytest.mark.gpu

WORLD, COUNT = 2, 300_000


def _installed(*names: str) -> bool:
    return any(importlib.util.find_spec(name) is not None for name in names)


def _run(reducers: Reducers, library: Path, folder: Path, body: Callable[..., Any]) -> None:
    job = Job(reducers.addresses, folder, library)
    with start_ranks(WORLD, body, job, free_ports(WORLD), talk=True) as ranks:
        ended = gpu_job.end(ranks, WORLD, reducers, job)
    ended.assert_through_reducers()
    assert ended.values == [sum(range(1, WORLD + 1))] * WORLD


def _psum(rank: int, world: int, job: Job, ports: list[int], tell: Tell) -> float:
    enter(rank, job)
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax: Any = importlib.import_module("jax")
    jax.distributed.initialize(f"127.0.0.1:{ports[0]}", world, rank, local_device_ids=[0])
    summed = jax.pmap(lambda x: jax.lax.psum(x, "ranks"), axis_name="ranks")(
        jax.numpy.full((1, COUNT), rank + 1, "float32")
    )
    assert bool((summed == summed[0, 0]).all())
    leave(4 * COUNT, tell)
    jax.distributed.shutdown()
    return float(summed[0, 0])


@pytest.mark.skipif(
    not _installed("jax_cuda12_plugin", "jax_cuda13_plugin"), reason="JAX for CUDA not installed"
)
def test_jax_psum(library: Path, reducers: Reducers, tmp_path: Path) -> None:
    _run(reducers, library, tmp_path, _psum)


def _mirrored(rank: int, world: int, job: Job, ports: list[int], tell: Tell) -> float:
    enter(rank, job)
    workers = [f"127.0.0.1:{port}" for port in ports]
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    tf: Any = importlib.import_module("tensorflow")
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.NCCL
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def one() -> Any:
        values = tf.fill([COUNT], tf.cast(rank + 1, tf.float32))
        return tf.distribute.get_replica_context().all_reduce("SUM", values)

    summed = tf.function(lambda: strategy.run(one))().numpy()
    assert (summed == summed[0]).all()
    leave(4 * COUNT, tell)
    return float(summed[0])


@pytest.mark.skipif(not _installed("tensorflow"), reason="TensorFlow not installed")
def test_tensorflow_multi_worker_mirrored(
    library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    _run(reducers, library, tmp_path, _mirrored)
