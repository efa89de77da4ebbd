"""Where reducers run: a placement group with a bundle of resources for each, and its ports."""

from __future__ import annotations

import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from reducer_client.errors import ReducerUnavailableError

Bundle = Mapping[str, float]
Place = tuple[str, int]


@contextmanager
def placed(count: int, bundle: Bundle, strategy: str, seconds: float) -> Generator[Any]:
    """A placement group of ``count`` equal bundles while the block runs.

    Raises ReducerUnavailableError if the cluster has no room for the bundles within ``seconds``.
    """
    group = placement_group([dict(bundle)] * count, strategy=strategy)
    try:
        if not group.wait(seconds):
            why = describe_lack(count, bundle, strategy, ray.nodes())
            raise ReducerUnavailableError(f"no place for the reducers within {seconds:g} s: {why}")
        yield group
    finally:
        if ray.is_initialized():
            remove_placement_group(group)


def at(group: Any, index: int) -> Any:
    """The scheduling strategy for a bundle of the group."""
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def describe_lack(
    count: int, bundle: Bundle, strategy: str, nodes: Sequence[Mapping[str, Any]]
) -> str:
    """Which bundle has no place on the nodes, and what the nodes have.

    Args:
        nodes: the nodes as ``ray.nodes()`` describes them.
    """
    alive = [node for node in nodes if node["Alive"]]
    rooms = [_room(node["Resources"], bundle) for node in alive]
    if strategy == "STRICT_SPREAD":
        rooms = [min(1, room) for room in rooms]
    fitting = max(rooms, default=0) if strategy == "STRICT_PACK" else sum(rooms)
    held = "; ".join(f"{node['NodeManagerAddress']} {_text(node['Resources'])}" for node in alive)
    needs = f"a reducer needs {_text(bundle)}; the nodes have {held}"
    if fitting < count:
        return f"bundle {fitting + 1} of {count} fits on no node with strategy {strategy}: {needs}"
    return f"there is room for {count} bundles, but other programs use it: {needs}"


def fetch(references: Sequence[Any], seconds: float) -> list[Any]:
    """The values of the references. Raises ReducerUnavailableError if they take too long."""
    try:
        return list(ray.get(list(references), timeout=seconds))
    except GetTimeoutError:
        raise ReducerUnavailableError(
            f"the nodes of the reducers did not answer within {seconds:g} s (are they overloaded?)"
        ) from None


def choose_places(group: Any, count: int, ports: tuple[int, int], seconds: float) -> list[Place]:
    """The address and a free port of the node of each bundle.

    Raises ReducerUnavailableError if a node has too few free ports in the range.
    """
    look = ray.remote(num_cpus=0)(_free_ports)
    looks = [
        look.options(scheduling_strategy=at(group, index)).remote(ports, count)
        for index in range(count)
    ]
    places: list[Place] = []
    for host, free in fetch(looks, seconds):
        place = next(((host, port) for port in free if (host, port) not in places), None)
        if place is None:
            raise ReducerUnavailableError(
                f"node {host} has no free port in {ports[0]} to {ports[1]} for another reducer: "
                "give a larger range of ports"
            )
        places.append(place)
    return places


def _free_ports(ports: tuple[int, int], count: int) -> tuple[str, list[int]]:
    """The address of this node, and up to ``count`` free ports of it; (0, 0) means any ports."""
    host = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [0] * count if ports == (0, 0) else range(ports[0], ports[1] + 1)
    found: list[int] = []
    with ExitStack() as stack:
        for port in wanted:
            probe = stack.enter_context(socket.socket(family))
            with suppress(OSError):
                probe.bind((host, port))
                found.append(probe.getsockname()[1])
            if len(found) == count:
                break
    return host, found


def _room(resources: Bundle, bundle: Bundle) -> int:
    """How many bundles fit into the resources."""
    return min(int(resources.get(name, 0) // amount) for name, amount in bundle.items())


def _text(resources: Bundle) -> str:
    gibibytes = resources.get("memory", 0) / (1 << 30)
    return f"{resources.get('CPU', 0):g} CPUs and {gibibytes:.1f} GiB of memory"
