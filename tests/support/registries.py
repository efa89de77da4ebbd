"""Registries of each kind, for the contract that all of them keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from torch.distributed import TCPStore

from reducer_client.registry.daemon import DaemonRegistry
from reducer_client.registry.interface import Registry
from reducer_client.registry.memory import MemoryRegistry, SharedRecords
from reducer_client.torch.store_registry import StoreRegistry
from tests.support.cluster import Daemon


class Backend(ABC):
    """One registry with any number of clients, which `close` ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clients: list[Registry] = []

    def client(self) -> Registry:
        self._clients.append(self.connect())
        return self._clients[-1]

    @abstractmethod
    def connect(self) -> Registry: ...

    @abstractmethod
    def kill(self, client: Registry) -> None:
        """End the client as if its process had died."""

    def close(self) -> None:
        for client in self._clients:
            client.close()


class MemoryBackend(Backend):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._shared = SharedRecords()

    def connect(self) -> MemoryRegistry:
        return MemoryRegistry(self._shared)

    def kill(self, client: Registry) -> None:
        assert isinstance(client, MemoryRegistry)
        client.abandon()


class DaemonBackend(Backend):
    """A reducer with a registry, and clients over TCP."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._daemon = Daemon("--registry", str(folder / "registry"))

    def connect(self) -> DaemonRegistry:
        return DaemonRegistry(self._daemon.address, "job")

    def kill(self, client: Registry) -> None:
        assert isinstance(client, DaemonRegistry)
        client.abandon()

    def close(self) -> None:
        super().close()
        assert self._daemon.stop() == 0, self._daemon.log


class StoreBackend(Backend):
    """torch's TCPStore, with its server in this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def connect(self) -> StoreRegistry:
        return StoreRegistry(self._server, interval=0.05)

    def kill(self, client: Registry) -> None:
        assert isinstance(client, StoreRegistry)
        client.abandon()


KINDS: dict[str, Callable[[Path], Backend]] = {
    "memory": MemoryBackend,
    "daemon": DaemonBackend,
    "store": StoreBackend,
}
