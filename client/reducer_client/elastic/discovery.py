"""Reducers that come and go: the addresses that a job should use now."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

from reducer.cluster.addresses import join_address, normalize_address, split_address
from reducer_client.reports import logger

INTERVAL = 5.0  # seconds between two looks: new reducers are in no hurry

Discover = Callable[[], Sequence[str]]


def of_service(service: str) -> Discover:
    """The reducers behind a name with several addresses, such as a headless service.

    ``service`` is ``name:port``, the port 2222 by default.
    """
    host, port = split_address(normalize_address(service))

    def look() -> list[str]:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        return [normalize_address(join_address(str(place[4][0]), port)) for place in found]

    return look


class Discovery:
    """Asks from time to time. ``addresses`` is the last answer, sorted; () before the first."""

    def __init__(self, discover: Discover) -> None:
        self._discover = discover
        self._is_stopped = threading.Event()
        self._is_told = False
        self.addresses: tuple[str, ...] = ()
        self._look()
        self._thread = threading.Thread(target=self._follow, name="reducer-discovery", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()

    def _follow(self) -> None:
        while not self._is_stopped.wait(INTERVAL):
            self._look()

    def _look(self) -> None:
        """An empty answer and an error change nothing: the job keeps the reducers that it has."""
        try:
            found = tuple(sorted({normalize_address(address) for address in self._discover()}))
        except Exception as error:  # the program's function, or the resolver
            if not self._is_told:
                logger.warning("the reducers could not be looked up: %s", error)
            self._is_told = True
            return
        self._is_told = False
        self.addresses = found or self.addresses
