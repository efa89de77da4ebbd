"""Reducers on the nodes of a Ray cluster."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup

from reducer.units import auto_lanes, needed_memory, parse_size
from reducer_client.errors import ReducerUnavailableError
from reducer_client.hosted.child_daemon import STOP_SECONDS
from reducer_client.hosted.failures import NotStartedError
from reducer_client.ray.actor import ReducerActor
from reducer_client.ray.placement import Place, at, choose_places, fetch, placed

Strategy = Literal["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"]
_KEY_BYTES = 32


@dataclass(frozen=True)
class Pool:
    """Reducers that run as actors.

    Attributes:
        addresses: host and port of each reducer.
        key: the reducers' key, for workers that call ``reducer_client.connect(key=...)``.
        actors: the handles of the actors.
    """

    addresses: tuple[str, ...]
    key: bytes = field(repr=False)
    actors: tuple[Any, ...] = field(repr=False)


@contextmanager
def reducers(
    count: int = 1,
    *,
    cpus: int = 2,
    memory: str = "4GiB",
    strategy: Strategy = "SPREAD",
    ports: tuple[int, int] = (0, 0),
    start_timeout: float = 60.0,
) -> Generator[Pool]:
    """Start reducers as actors of the Ray cluster and yield them. They end with the block.

    Each reducer listens on its node's address, and asks every worker for a key that only this pool
    has. If a reducer or its actor ends, it starts again at the same address, and running trainings
    use it again. A reducer whose node is lost does not come back, because the address is lost: the
    other reducers take over its work.

    Args:
        count: number of reducers.
        cpus: CPUs of each reducer.
        memory: memory budget of each reducer, as for ``reducer serve --memory``. The bundle of a
            reducer has a tenth more, and what the processes need.
        strategy: Ray's placement strategy. SPREAD prefers a node for each reducer, because two
            reducers on a node share its NIC.
        ports: first and last port to listen on; (0, 0) means any free port.
        start_timeout: seconds for Ray to find room, and again for the reducers to start.

    Raises:
        ValueError: ``count`` or ``cpus`` is below 1, or ``memory`` is not a size.
        ReducerUnavailableError: the cluster has no room, or a reducer did not start. The text says
            which bundle has no place.
    """
    if count < 1 or cpus < 1:
        raise ValueError(f"count={count}, cpus={cpus}: expected at least 1 of each")
    budget, lanes = parse_size(memory), auto_lanes(cpus)
    options = ["--lanes", str(lanes), "--memory", str(budget)]
    bundle = {"CPU": cpus, "memory": needed_memory(budget, lanes)}
    key = secrets.token_bytes(_KEY_BYTES)
    with placed(count, bundle, strategy, start_timeout) as group:
        places = choose_places(group, count, ports, start_timeout)
        actors = _start(group, bundle, places, key, options)
        try:
            yield Pool(_wait_ready(actors, start_timeout), key, tuple(actors))
        finally:
            _stop(actors)


def _start(
    group: PlacementGroup,
    bundle: dict[str, int],
    places: Sequence[Place],
    key: bytes,
    options: Sequence[str],
) -> list[Any]:
    kind = ray.remote(
        num_cpus=bundle["CPU"], memory=bundle["memory"], max_restarts=-1, max_task_retries=-1
    )(ReducerActor)
    return [
        kind.options(scheduling_strategy=at(group, index)).remote(host, port, key, options)
        for index, (host, port) in enumerate(places)
    ]


def _wait_ready(actors: Sequence[Any], seconds: float) -> tuple[str, ...]:
    try:
        return tuple(fetch([actor.address.remote() for actor in actors], seconds))
    except RayActorError as error:
        # The text of an actor that was never made ends with the traceback of its error.
        why = str(error).rpartition(f"{NotStartedError.__name__}: ")[2]
        raise ReducerUnavailableError(f"a reducer did not start: {why}") from None


def _stop(actors: Sequence[Any]) -> None:
    if not ray.is_initialized():  # ray.shutdown() has ended the actors
        return
    stops = [actor.stop.remote() for actor in actors]
    ray.wait(stops, num_returns=len(stops), timeout=2 * STOP_SECONDS)
    for actor in actors:
        ray.kill(actor)
