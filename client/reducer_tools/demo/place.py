"""Where the demo's programs run: on hosts with limited NICs, or all on this machine's loopback."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Protocol

from reducer_client.config.hosting import hosted_environment
from reducer_client.hosted.child_daemon import ChildDaemon
from reducer_tools.netlab import Lab

_START_SECONDS = 30.0


class Place(Protocol):
    """Hosts, each with an address, an interface of the same name, and a namespace or ""."""

    @property
    def interface(self) -> str: ...
    def address(self, host: str) -> str: ...
    def namespace(self, host: str) -> str: ...
    def inside(self, host: str) -> AbstractContextManager[None]: ...


class Loopback:
    """Every host is this machine."""

    interface = "lo"

    def address(self, host: str) -> str:
        return "127.0.0.1"

    def namespace(self, host: str) -> str:
        return ""

    def inside(self, host: str) -> AbstractContextManager[None]:
        return nullcontext()


class LimitedNics(Lab):
    """Every host has a NIC of its own, ``eth0``."""

    interface = "eth0"


@contextmanager
def serve(place: Place, hosts: Sequence[str], key_file: str) -> Generator[list[str]]:
    """Start a reducer on each host and yield their addresses. The reducers end with the block.

    Raises NotStartedError, with the end of a reducer's log.
    """
    with ExitStack() as stack:
        daemons = [stack.enter_context(_start(place, host, key_file)) for host in hosts]
        deadline = time.monotonic() + _START_SECONDS
        yield [daemon.wait_ready(deadline) for daemon in daemons]


@contextmanager
def _start(place: Place, host: str, key_file: str) -> Generator[ChildDaemon]:
    options = ["--host", place.address(host), "--port", "0", "--metrics-port", "0"]
    with place.inside(host):
        daemon = ChildDaemon([*options, "--key-file", key_file], hosted_environment())
    try:
        yield daemon
    finally:
        daemon.stop()
