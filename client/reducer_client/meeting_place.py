"""Meetings over a reducer that every rank knows: a dedicated one, or one that rank 0 starts."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import time
from collections.abc import Generator

import numpy as np

from reducer.cluster.addresses import split_address
from reducer_client.config.hosting import hosted_environment
from reducer_client.errors import JoinError, RoundTimeoutError
from reducer_client.group import Group
from reducer_client.hosted.child_daemon import ChildDaemon
from reducer_client.hosted.failures import NotStartedError
from reducer_client.hosted.hosted_reducer import key_file
from reducer_client.hosted.meeting import Record

_MEMORY = "64MiB"


class GroupMeeting:
    """A meeting of the ranks of a group. ``seconds`` is the limit for an exchange."""

    def __init__(self, group: Group, seconds: float) -> None:
        self._group = group
        self._seconds = seconds

    def exchange(self, name: str, record: Record) -> list[Record]:
        try:
            return self._exchange(name, record)
        except RoundTimeoutError as error:
            raise JoinError(f"the ranks did not meet to choose the reducers: {error}") from None

    def _exchange(self, name: str, record: Record) -> list[Record]:
        text = np.frombuffer(json.dumps(record).encode(), np.uint8)
        size = np.array([text.size])
        sizes = self._group.all_gather(size, key=f"{name}/size").wait(self._seconds)
        padded = np.full(int(sizes.max()), ord(" "), np.uint8)
        padded[: text.size] = text
        texts = self._group.all_gather(padded, key=name).wait(self._seconds)
        return [json.loads(each.tobytes()) for each in texts]


@contextlib.contextmanager
def reducer_of_rank_0(address: str, key: bytes, start_seconds: float) -> Generator[None]:
    """Serve a meeting at this address while the block runs. Only rank 0 calls this function.

    Without a key, anybody who reaches the address can come to the meeting: it is as trustworthy as
    the store of torch.distributed.

    Raises NotStartedError if the reducer does not start, for example since the port is in
    use.
    """
    host, port = split_address(address)
    options = ["--host", _to_serve(host.strip("[]")), "--port", str(port), "--metrics-port", "0"]
    options += ["--lanes", "1", "--memory", _MEMORY]
    with contextlib.ExitStack() as stack:
        fds = (stack.enter_context(key_file(key)),) if key else ()
        options += ["--key-file", f"/proc/self/fd/{fds[0]}"] if fds else ["--insecure"]
        daemon = ChildDaemon(options, hosted_environment(), fds)
        stack.callback(daemon.stop)
        try:
            daemon.wait_ready(time.monotonic() + start_seconds)
        except NotStartedError as error:
            raise NotStartedError(
                f"the ranks cannot meet at {address}: {error}\nREDUCER_MEETING=host:port, or "
                "another MASTER_PORT, moves the meeting"
            ) from None
        yield


def _to_serve(host: str) -> str:
    """A loopback address stays as it is.

    Otherwise all addresses: rank 0's machine may resolve its own name to loopback.
    """
    try:
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return host
    except ValueError:  # a name
        pass
    try:
        families = {item[0] for item in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return "0.0.0.0"
    return "::" if socket.AF_INET6 in families else "0.0.0.0"
