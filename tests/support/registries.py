"""Registries of each kind, for the contract that all of them keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from reducer_client.registry.interface import Registry
from reducer_client.registry.memory import MemoryRegistry, SharedRecords


class Backend(ABC):
    """One registry with any number of clients, which `close` ends."""

    def __init__(self) -> None:
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
    def __init__(self) -> None:
        super().__init__()
        self._shared = SharedRecords()

    def connect(self) -> MemoryRegistry:
        return MemoryRegistry(self._shared)

    def kill(self, client: Registry) -> None:
        assert isinstance(client, MemoryRegistry)
        client.abandon()


KINDS: dict[str, Callable[[], Backend]] = {"memory": MemoryBackend}
