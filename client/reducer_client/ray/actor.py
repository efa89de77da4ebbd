"""The actor of one reducer. It runs ``reducer serve`` as a child process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import ray

from reducer.cluster.addresses import join_address
from reducer_client.config.hosting import hosted_environment
from reducer_client.hosted.failures import NotStartedError
from reducer_client.hosted.hosted_reducer import HostedReducer


class ReducerActor:
    """Runs the process at one address until `stop`.

    If the process ends, the actor starts it again. If the actor ends, Ray makes it again with the
    same arguments, so the reducer comes back at its address.

    Args:
        host: the address of the node.
        port: the port to listen on.
        key: the reducers' key.
        options: more arguments of ``reducer serve``.

    Raises NotStartedError if the process does not start. Also if Ray makes the actor again on
    another node, because that node does not have the address.
    """

    def __init__(self, host: str, port: int, key: bytes, options: Sequence[str]) -> None:
        own = ray.util.get_node_ip_address()
        address = join_address(host, port)
        if own != host:
            raise NotStartedError(
                f"the node of the reducer at {address} is lost, and node {own} does not have this "
                "address: a running training goes on with the other reducers; make a new pool for "
                "the next one"
            )
        replaced = address if _is_made_again() else ""
        self._reducer = HostedReducer(
            host, (port, port), key, options, hosted_environment(), replaced
        )
        self._address = self._reducer.start()

    def address(self) -> str:
        return self._address

    def pid(self) -> int | None:
        """The process of the reducer; None while there is none."""
        return self._reducer.pid

    def stop(self) -> None:
        """Let the reducer drain, and kill it if that takes more than 5 s."""
        self._reducer.stop()


def _is_made_again() -> bool:
    """Whether Ray has made this actor before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's property calls a deprecated one
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
