"""CLUSTER_SPEC (Vertex) and TF_CONFIG: JSON with the addresses of all replicas and this one's task.

    {"cluster": {"workerpool0": ["a:2222"], "workerpool2": ["b:2222"]},
     "task": {"type": "workerpool0", "index": 0, "trial": "1"}, "environment": "cloud", "job": {}}

Pools may be absent, null or empty. ``environment`` and ``job`` (an object, or JSON in a string) are
not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from reducer.cluster.addresses import normalize_address, refuse_duplicates
from reducer.cluster.fields import Field, parse
from reducer.cluster.variables import ClusterError, Environment

Role = Literal["worker", "reducer", "evaluator"]


@dataclass(frozen=True)
class Layout:
    """The names of the pools in a variable.

    ``workers`` is in the order of ranks. An item has alternative names of one pool, and only one of
    these may have replicas.
    """

    variable: str
    workers: tuple[tuple[str, ...], ...]
    reducers: str
    evaluators: str

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {name: "worker" for names in self.workers for name in names}
        return roles | {self.reducers: "reducer", self.evaluators: "evaluator"}


LAYOUTS = (
    Layout("CLUSTER_SPEC", (("workerpool0",), ("workerpool1",)), "workerpool2", "workerpool3"),
    Layout("TF_CONFIG", (("chief", "master"), ("worker",)), "ps", "evaluator"),
)


@dataclass(frozen=True)
class Task:
    """The task of this replica. Evaluators take no part: they have neither rank nor address."""

    role: Role
    rank: int | None = None
    address: str | None = None


class Description:
    """The parsed text of one variable. A field is checked when it is read."""

    def __init__(self, layout: Layout, text: str) -> None:
        self.variable = layout.variable
        self._layout = layout
        self._root = parse(layout.variable, text)

    def reducers(self) -> tuple[str, ...]:
        """The addresses of the reducers; empty if the cluster has none."""
        found = self._pool(self._layout.reducers)
        refuse_duplicates(found, f"{self.variable}: cluster.{self._layout.reducers}")
        return found

    def workers(self) -> tuple[str, ...]:
        """The addresses of the workers in the order of ranks."""
        return tuple(address for name in self._worker_pools() for address in self._pool(name))

    def task(self) -> Task | None:
        """The task of this replica; None if the variable has none."""
        task = self._root.get("task")
        kind = None if task is None else task.get("type")
        if task is None or kind is None:
            return None
        roles = self._layout.roles()
        name = kind.text("the name of a pool")
        if name not in roles:
            raise kind.refuse(f"one of {', '.join(roles)}")
        if roles[name] == "evaluator":
            return Task("evaluator")
        pool = self._pool(name)
        if not pool:
            raise kind.refuse("a pool that has replicas in cluster")
        index = _index(task, name, len(pool))
        if roles[name] == "reducer":
            return Task("reducer", None, pool[index])
        return Task("worker", self._first_rank(name) + index, pool[index])

    def trial(self) -> str:
        """The id of the trial of hyperparameter tuning; "" if there is none."""
        task = self._root.get("task")
        trial = None if task is None else task.get("trial")
        return "" if trial is None else trial.text("a string")

    def _first_rank(self, name: str) -> int:
        first = 0
        for pool in self._worker_pools():
            if pool == name:
                break
            first += len(self._pool(pool))
        return first

    def _worker_pools(self) -> list[str]:
        """The names of the pools that have replicas, in the order of ranks."""
        pools = []
        for names in self._layout.workers:
            used = [name for name in names if self._pool(name)]
            if len(used) > 1:
                raise ClusterError(
                    f"{self.variable}: cluster: expected one of {' and '.join(used)}, got both"
                )
            pools += used
        return pools

    def _pool(self, name: str) -> tuple[str, ...]:
        cluster = self._root.get("cluster")
        pool = None if cluster is None else cluster.get(name)
        return () if pool is None else tuple(map(_address, pool.elements("host:port")))


def descriptions(env: Environment) -> Iterator[Description]:
    """The variables that are set, in the order of LAYOUTS. A variable is parsed when yielded."""
    for layout in LAYOUTS:
        if env.get(layout.variable, ""):
            yield Description(layout, env[layout.variable])


def _address(field: Field) -> str:
    text = field.text("host:port")
    try:
        return normalize_address(text)
    except ClusterError as error:
        raise field.error(str(error)) from None


def _index(task: Field, pool: str, replicas: int) -> int:
    expected = f"an integer from 0 to {replicas - 1} (cluster.{pool} has {replicas})"
    field = task.need("index", expected)
    index = field.integer(expected)
    if not 0 <= index < replicas:
        raise field.refuse(expected)
    return index
