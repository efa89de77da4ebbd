"""Ray Train's configuration of PyTorch, for training over the reducers of a pool."""

from __future__ import annotations

import os
import secrets
from typing import Any

from ray.train.torch import TorchConfig

from reducer import keyfile
from reducer.wire.handshake import job_key
from reducer_client import torch_autoload
from reducer_client.config import publish_job
from reducer_client.ray.pool import Pool


class ReducerConfig(TorchConfig):  # type: ignore[misc]  # Ray may be missing where types are checked
    """Lets the workers of a TorchTrainer train over the reducers of a pool.

    The process group of the workers has the backend ``"reducer"``, so the training function stays
    as it is. The workers get the addresses of the reducers, the name of the job, and the key of
    this job alone.

    Args:
        pool: the reducers.
        job: name of the job on the reducers. By default a random one.
        options: further arguments of ``ray.train.torch.TorchConfig``, such as ``timeout_s``.
    """

    def __init__(self, pool: Pool, *, job: str = "", **options: Any) -> None:
        super().__init__(backend=torch_autoload.NAME, **options)
        self._addresses = pool.addresses
        self._job = job or f"ray-{secrets.token_hex(8)}"
        # Ray shows attributes that are texts, numbers, dicts or objects; bytes are not shown.
        self._key = job_key(pool.key, self._job)

    @property
    def backend_cls(self) -> Any:
        """Called by Ray Train."""
        return _ReducerBackend


class _ReducerBackend(TorchConfig().backend_cls):  # type: ignore[misc]  # as above
    def on_start(self, worker_group: Any, backend_config: ReducerConfig) -> None:
        job = (backend_config._addresses, backend_config._job, backend_config._key)
        worker_group.execute(_enter, *job)
        super().on_start(worker_group, backend_config)


def _enter(addresses: tuple[str, ...], job: str, key: bytes) -> None:
    """Give this worker, and programs that it starts, the variables of the job."""
    torch_autoload.register()
    fd = keyfile.in_memory(keyfile.text_for_job(key))  # open until the worker ends
    publish_job(addresses, job, f"/proc/{os.getpid()}/fd/{fd}")
