"""Formats the values found: as a table, as JSON, or as lines for a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from reducer.cluster.discovery import Cluster
from reducer.cluster.variables import Found
from reducer.columns import aligned

_NONE = "-"


def as_text(cluster: Cluster) -> str:
    """One row per value, and one line per reducer; a missing value has a hint how to set it."""
    rows = [("VALUE", "", "FROM"), *_rows(cluster)]
    return "\n".join(aligned(rows, left=range(3)))


def as_json(cluster: Cluster) -> str:
    """An object; each value is null or an object with ``value`` and ``source``."""
    return json.dumps({name: _plain(found) for name, found in _values(cluster).items()})


def as_shell(cluster: Cluster) -> str:
    """``export`` lines with torch.distributed's variables and the list of reducers."""
    return "\n".join(
        f"export {name}={shlex.quote(_text(found.value))}"
        for name, found in _exports(cluster).items()
        if found is not None
    )


def not_exported(cluster: Cluster) -> list[str]:
    """The variables that ``as_shell`` leaves out, since no value was found."""
    return [name for name, found in _exports(cluster).items() if found is None]


def _exports(cluster: Cluster) -> dict[str, Found[Any] | None]:
    return {
        "REDUCER_ADDRS": cluster.addresses,
        "RANK": cluster.rank,
        "WORLD_SIZE": cluster.world_size,
        "LOCAL_RANK": cluster.local_rank,
        "LOCAL_WORLD_SIZE": cluster.local_world_size,
        "MASTER_ADDR": cluster.master_addr,
        "MASTER_PORT": cluster.master_port,
    }


_HINTS = {
    "reducers": "(workers host them, or set REDUCER_ADDRS, or REDUCER_SERVICE and _REPLICAS)",
    "job": "(set REDUCER_JOB, equal on all ranks)",
    "run id": "(rank 0 makes one)",
    "rank": "(set REDUCER_RANK, or start by a launcher; only workers have one)",
    "world size": "(set REDUCER_WORLD_SIZE, or start by a launcher)",
}


def _rows(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    for name, found in _values(cluster).items():
        label = name if name.isupper() else name.replace("_", " ")
        if found is None:
            yield label, _NONE, _HINTS.get(label, "")
            continue
        first, *more = found.value if isinstance(found.value, tuple) else (str(found.value),)
        yield label, first, found.source
        yield from (("", value, "") for value in more)


def _values(cluster: Cluster) -> dict[str, Found[Any] | None]:
    role: Found[str] | None = None
    address: Found[str] | None = None
    if cluster.task is not None:
        task, source = cluster.task.value, cluster.task.source
        role = Found(task.role, source)
        address = None if task.address is None else Found(task.address, source)
    elif cluster.rank is not None:
        role = Found("worker", cluster.rank.source)
    return {
        "role": role,
        "own_address": address,
        "reducers": cluster.addresses,
        "job": cluster.job,
        "run_id": cluster.run_id,
        "epoch": cluster.epoch,
        "rank": cluster.rank,
        "world_size": cluster.world_size,
        "local_rank": cluster.local_rank,
        "local_world_size": cluster.local_world_size,
        "MASTER_ADDR": cluster.master_addr,
        "MASTER_PORT": cluster.master_port,
    }


def _plain(found: Found[Any] | None) -> dict[str, Any] | None:
    return None if found is None else {"value": found.value, "source": found.source}


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
