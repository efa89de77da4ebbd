"""Inner groups for the calls that do not use reducers: gloo for the CPU, nccl for CUDA."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from reducer_client import config
from reducer_client.errors import ClosedError


class InnerGroups:
    """Makes each inner group at its first use, and only on the ranks that use it.

    Connections are made lazily, so the other ranks need not take part.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: timedelta) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}
        self._ended = False

    def find(self, device: torch.device) -> Any:
        """The group for tensors of a device. Raises ClosedError after `end`."""
        with self._lock:
            if self._ended:
                raise ClosedError("this group is closed", reason="closed")
            if device.type not in self._made:
                make = self._make_nccl if device.type == "cuda" else self._make_gloo
                self._made[device.type] = make(PrefixStore(device.type, self._store))
            return self._made[device.type]

    def end(self, abort: bool) -> None:
        """Shut down or abort the groups that have been made."""
        with self._lock:
            self._ended = True
            for group in self._made.values():
                group.abort() if abort else group.shutdown()
            self._made.clear()

    def _make_gloo(self, store: Store) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = self._timeout
        options._devices = [
            gloo.create_device(interface=name, lazy_init=True) for name in config.gloo_interfaces()
        ] or [gloo.create_default_device(lazy_init=True)]
        return gloo(store, self._rank, self._world_size, options)

    def _make_nccl(self, store: Store) -> Any:
        if not dist.is_nccl_available():
            raise RuntimeError(
                "send, recv, scatter, gather and all-to-all of CUDA tensors need nccl, which this "
                "torch does not have: move the tensors to the CPU"
            )
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(store, self._rank, self._world_size, options)
