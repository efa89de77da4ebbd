"""How the ranks of a process group agree on a job and a run, and join the group on the reducers."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from typing import Literal, TypedDict

from torch._C._distributed_c10d import PrefixStore, Store

from reducer_client import config, debug
from reducer_client.config import Given, JobSettings, find_value
from reducer_client.config.hosting import needs_meeting, resolve_hosting
from reducer_client.errors import JoinError, of_hosted
from reducer_client.group import Group
from reducer_client.hosted.forming import form
from reducer_client.hosted.reducers import Reducers
from reducer_client.joining import join, join_beside
from reducer_client.torch.backend.options import Options
from reducer_client.torch.backend.store_meeting import StoreMeeting, store_host
from reducer_client.torch.hierarchy.hierarchy import Hierarchy, open_hierarchy
from reducer_client.trust import resolve_trust

logger = logging.getLogger("reducer_client")
# torch's own timeout may be 30 minutes, so a rank that waits says for whom after this many seconds.
_TELL_AFTER = 30.0


def form_hierarchy(
    group: Group,
    store: Store,
    name: str,
    levels: Literal["auto", True],
    options: Options,
    timeout: timedelta,
) -> Hierarchy | None:
    """Form the hierarchy of a process group; None if the ranks' hosts do not allow one.

    ``store`` must belong to this run alone.
    """

    def join(part: str, host: int, hosts: int) -> Group:
        formation = Formation(part, host, hosts, timeout, is_default=False)
        # The run id can be used again: a group forms a new hierarchy only after all ranks have left
        # its previous one.
        run_id = group.run_id.partition("#")[0]
        return formation.form(PrefixStore(part, store), options, run_id, beside=group)

    return open_hierarchy(
        group,
        store,
        join,
        name=name,
        wanted=True if levels is True else None,
        timeout=timeout.total_seconds(),
    )


class Chosen(TypedDict):
    """What rank 0 chooses for all ranks. ``meets``: whether there may be hosted reducers."""

    job: str
    run_id: str
    meets: bool


@dataclass(frozen=True)
class Formation:
    """Name and size of a process group that is to be formed, and this rank's place in it."""

    name: str
    rank: int
    world_size: int
    timeout: timedelta
    is_default: bool

    def form(
        self, store: Store, options: Options, run_id: str | None, beside: Group | None = None
    ) -> Group:
        """Join the group on the reducers. Returns when all ranks have joined.

        Args:
            store: a store for groups of this name only.
            run_id: id of the run that the group belongs to. By default rank 0 chooses it.
            beside: a group of the same run, whose reducers and settings this group uses. By default
                these come from the options and the environment.

        Raises:
            JoinError: some ranks did not come in time, or rank 0 failed. The text names the ranks.
            ValueError, ReducerError: as ``reducer_client.connect``.
        """
        # The store may hold keys of earlier groups of this name. Every rank makes equally many
        # groups, so equal generations belong together.
        generation = store.add(f"generation/{self.rank}", 1)
        here = PrefixStore(str(generation), store)
        here.set(f"rank/{self.rank}", "")
        if self.rank == 0:
            self._choose(here, options, run_id, generation, beside)
        self._wait(here, ["run"])
        chosen = json.loads(here.get("run"))
        if "error" in chosen:
            raise JoinError(f"process group {self.name!r}: rank 0 failed: {chosen['error']}")
        if beside is None:
            return self._join(here, options, chosen)
        return join_beside(
            beside,
            rank=self.rank,
            world_size=self.world_size,
            run_id=chosen["run_id"],
            connect_timeout=self._connect_timeout(options),
            step_timeout=self.timeout.total_seconds(),
        )

    def _join(self, store: Store, options: Options, chosen: Chosen) -> Group:
        debug.follow_environment()
        trust = resolve_trust(chosen["job"], options)
        reducers = Reducers(config.find_dedicated(options.addresses))
        if chosen["meets"]:
            hosting = resolve_hosting(options)
            wait = partial(self._wait, limit=self._connect_timeout(options))
            meeting = StoreMeeting(store, self.rank, self.world_size, wait)
            toward = store_host(store) or hosting.toward
            hosting = replace(hosting, toward=toward)
            with of_hosted():
                reducers = form(meeting, self.rank, hosting, reducers.addresses, key=trust.key)
        with reducers.stopped_on_error():
            return join(config.resolve(self._given(options, chosen, reducers)), trust, reducers)

    def _given(self, options: Options, chosen: Chosen, reducers: Reducers) -> Given:
        """What ``connect`` would be given on this rank."""
        of_job = {each.name: getattr(options, each.name) for each in fields(JobSettings)}
        of_job |= {
            "addresses": reducers.addresses,
            "job": chosen["job"],
            "weights": reducers.weights or options.weights,
            "connect_timeout": self._connect_timeout(options),
        }
        return Given(
            **of_job,
            rank=self.rank,
            world_size=self.world_size,
            run_id=chosen["run_id"],
            step_timeout=self.timeout.total_seconds(),
        )

    def _connect_timeout(self, options: Options) -> float:
        wanted: float = find_value("connect_timeout", options.connect_timeout)
        return min(self.timeout.total_seconds(), wanted)

    def _choose(
        self,
        store: Store,
        options: Options,
        run_id: str | None,
        generation: int,
        beside: Group | None,
    ) -> None:
        try:
            self._wait(store, [f"rank/{rank}" for rank in range(self.world_size)])
            job, found = config.resolve_run(options.addresses, options.job)
            meets = beside is None and self._meets(options)
            if not meets and beside is None:
                config.require_addresses(options.addresses)
        except (JoinError, ValueError) as error:  # the other ranks need not wait
            store.set("run", json.dumps({"error": str(error)}))
            raise
        name = run_id or found
        if generation > 1:
            name += f".{generation}"
        if not self.is_default:
            name += f"#{self.name}"
        store.set("run", json.dumps(Chosen(job=job, run_id=name, meets=meets)))

    def _meets(self, options: Options) -> bool:
        hosting = resolve_hosting(options)
        if options.weights:
            hosting = hosting.with_weights_given()
        return needs_meeting(
            hosting,
            len(config.find_dedicated(options.addresses)),
            self.world_size,
            several_machines=True,
            tls=config.resolve_tls(options.tls_cert, options.tls_key, options.tls_ca) is not None,
        )

    def _wait(self, store: Store, keys: list[str], limit: float | None = None) -> None:
        """Wait for keys of the store, by default for the group's timeout.

        After _TELL_AFTER seconds, log which ranks are missing.
        """
        limit = seconds = self.timeout.total_seconds() if limit is None else limit
        if limit > _TELL_AFTER:
            try:
                store.wait(keys, timedelta(seconds=_TELL_AFTER))
                return
            except RuntimeError:  # no common type for a timeout
                logger.warning(
                    "process group %r waits for ranks, up to %g s; missing ranks: %s (is one dead, "
                    "or does it not make this group?)",
                    self.name, limit, self._missing(store),
                )  # fmt: skip
            limit -= _TELL_AFTER
        try:
            store.wait(keys, timedelta(seconds=limit))
        except RuntimeError as error:
            raise JoinError(
                f"process group {self.name!r}: not all of {self.world_size} ranks came within "
                f"{seconds:g} s; missing ranks: {self._missing(store)}"
            ) from error

    def _missing(self, store: Store) -> str:
        ranks = range(self.world_size)
        missing = [str(rank) for rank in ranks if not store.check([f"rank/{rank}"])]
        return ", ".join(missing) or "none, but rank 0 has not answered"
