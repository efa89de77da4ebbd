"""A meeting over the store of torch.distributed."""

from __future__ import annotations

import json
from collections.abc import Callable

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from reducer_client.hosted.meeting import Record


class StoreMeeting:
    """``wait`` waits for keys of a store in which each rank that is there has the key ``rank/N``.

    It raises JoinError if they do not come in time.
    """

    def __init__(
        self, store: Store, rank: int, world_size: int, wait: Callable[[Store, list[str]], None]
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._wait = wait

    def exchange(self, name: str, record: Record) -> list[Record]:
        store = PrefixStore(name, self._store)
        store.set(f"rank/{self._rank}", json.dumps(record))
        if self._rank == 0:  # one value for all: n ranks that read n values are too many requests
            keys = [f"rank/{rank}" for rank in range(self._world_size)]
            self._wait(store, keys)
            store.set("all", json.dumps([json.loads(store.get(key)) for key in keys]))
        self._wait(store, ["all"])
        found: list[Record] = json.loads(store.get("all"))
        return found


def store_host(store: Store) -> str:
    """The host of a TCPStore below any prefixes, "" for another store."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""
