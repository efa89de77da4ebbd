"""How the ranks of a process group become a group on the reducers: one name, one run, everyone."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from torch._C._distributed_c10d import PrefixStore, Store

from reducer_client import config
from reducer_client.errors import JoinError
from reducer_client.group import Group
from reducer_client.joining import connect
from reducer_client.torch.backend.options import Options
from reducer_client.torch.hierarchy.hierarchy import Hierarchy, open_hierarchy


def form_hierarchy(
    group: Group,
    store: Store,
    name: str,
    levels: Literal["auto", True],
    options: Options,
    timeout: timedelta,
) -> Hierarchy | None:
    """Form the hierarchy of a process group, or return None. Only this run uses ``store``."""

    def join(part: str, host: int, hosts: int) -> Group:
        formation = Formation(part, host, hosts, timeout, is_default=False)
        # One hierarchy of a group follows another only after all ranks have left the former.
        run_id = group.run_id.partition("#")[0]
        return formation.form(PrefixStore(part, store), replace(options, job=group.job), run_id)

    return open_hierarchy(
        group,
        store,
        join,
        name=name,
        wanted=True if levels is True else None,
        timeout=timeout.total_seconds(),
    )


@dataclass(frozen=True)
class Formation:
    """Which group is to be formed, and this rank's place in it."""

    name: str
    rank: int
    world_size: int
    timeout: timedelta
    is_default: bool

    def form(self, store: Store, options: Options, run_id: str | None) -> Group:
        """Join the group on the reducers; returns when all ranks have joined.

        Args:
            store: of this group alone.
            run_id: of the default group, where this is another one.

        Raises:
            JoinError: ranks did not come in time; it names them.
            ValueError, ReducerError: as ``reducer_client.connect``.
        """
        # A store may outlive a group of this name; every rank makes its groups equally often.
        generation = store.add(f"generation/{self.rank}", 1)
        here = PrefixStore(str(generation), store)
        here.set(f"rank/{self.rank}", "")
        if self.rank == 0:
            self._choose(here, options, run_id, generation)
        self._wait(here, ["run"])
        chosen = json.loads(here.get("run"))
        if "error" in chosen:
            raise JoinError(f"process group {self.name!r}: rank 0 has failed: {chosen['error']}")
        seconds = self.timeout.total_seconds()
        return connect(
            options.addresses,
            job=chosen["job"],
            rank=self.rank,
            world_size=self.world_size,
            run_id=chosen["run_id"],
            connect_timeout=min(seconds, config.resolve_seconds("connect_timeout")),
            step_timeout=seconds,
        )

    def _choose(self, store: Store, options: Options, run_id: str | None, generation: int) -> None:
        try:
            self._wait(store, [f"rank/{rank}" for rank in range(self.world_size)])
            job, found = config.resolve_run(options.addresses, options.job)
        except (JoinError, ValueError) as error:  # who comes later need not wait
            store.set("run", json.dumps({"error": str(error)}))
            raise
        name = run_id or found
        if generation > 1:
            name += f".{generation}"
        if not self.is_default:
            name += f"#{self.name}"
        store.set("run", json.dumps({"job": job, "run_id": name}))

    def _wait(self, store: Store, keys: list[str]) -> None:
        try:
            store.wait(keys, self.timeout)
        except RuntimeError as error:  # stores have no type for a timeout in common
            ranks = range(self.world_size)
            missing = [str(rank) for rank in ranks if not store.check([f"rank/{rank}"])]
            raise JoinError(
                f"process group {self.name!r}: after {self.timeout.total_seconds():g} s these of "
                f"{self.world_size} ranks are missing: {', '.join(missing) or 'none; 0 has failed'}"
            ) from error
