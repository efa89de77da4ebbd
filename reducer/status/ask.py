"""Asks running reducers for their statistics.

The caller gives the address of the port for workers. This port answers an HTTP request with the
address of the metrics port. The address of a metrics port works as well.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from reducer.cluster.addresses import split_address
from reducer.status.redirect import redirected_to
from reducer.status.summary import summarize

_PAGE = "/api/stats"
_MAX_ANSWER = 16 << 20
_MAX_AT_ONCE = 32
_EVERYWHERE = ("0.0.0.0", "[::]")


class StatusError(Exception):
    """A reducer did not answer; the text names its address and what to try."""


def ask_all(
    addresses: Sequence[str], seconds: float
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The answers, and the texts of the errors, both by address.

    Up to 32 addresses are asked at the same time.
    """
    answers, errors = {}, {}
    with ThreadPoolExecutor(min(len(addresses), _MAX_AT_ONCE)) as pool:
        asked = [(address, pool.submit(ask, address, seconds)) for address in addresses]
    for address, answer in asked:
        try:
            answers[address] = answer.result()
        except StatusError as error:
            errors[address] = str(error)
    return answers, errors


def ask(address: str, seconds: float) -> dict[str, Any]:
    """The reducer's statistics; raises StatusError."""
    status, body, metrics = _get(address, seconds)
    if metrics:
        try:
            status, body, _ = _get(metrics, seconds)
        except StatusError as error:
            raise StatusError(f"{address}: its metrics are at {metrics}: {error}") from None
    return _decoded(address, status, body)


def _get(address: str, seconds: float) -> tuple[int, bytes, str]:
    """The status and the body of the answer, and the address of the metrics if it names one."""
    host, port = split_address(address)
    connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=seconds)
    try:
        connection.connect()
        sock = connection.sock
        is_here = sock.getsockname()[0] == sock.getpeername()[0]
        with _deadline(sock, seconds):
            connection.request("GET", _PAGE)
            with connection.getresponse() as answer:
                metrics = _metrics(host, is_here, redirected_to(answer.headers))
                found = answer.status, answer.read(_MAX_ANSWER), metrics
    except socket.gaierror as error:
        raise StatusError(f"{address}: {error.strerror}") from None
    except TimeoutError:
        raise StatusError(
            f"{address}: no answer in {seconds:g} s; is it reachable from here, and not frozen?"
        ) from None
    except (http.client.HTTPException, ConnectionResetError):
        raise StatusError(
            f"{address}: what answers there is no reducer of this version: expected the address "
            "of its port for workers (2222) or of its metrics (2223)"
        ) from None
    except OSError as error:
        raise StatusError(
            f"{address}: {error.strerror}; does `reducer serve` run there? (Its metrics are on "
            "loopback unless it has --metrics-host)"
        ) from None
    finally:
        connection.close()
    return found


def _metrics(host: str, is_here: bool, told: str) -> str:
    """Where we find the metrics that a reducer at ``host`` has told of; "" if it has not.

    ``is_here``: the reducer is on this machine, where its metrics may be on another address.
    """
    if not told:
        return ""
    own, port = split_address(told)
    return f"{own if is_here and own not in _EVERYWHERE else host}:{port}"


@contextlib.contextmanager
def _deadline(sock: socket.socket, seconds: float) -> Generator[None]:
    """Raises TimeoutError if the block takes longer than `seconds` in total.

    The socket's own timeout applies to each receive, so a peer could send a byte a second for ever.
    """

    def end() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    until = time.monotonic() + seconds
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if time.monotonic() >= until:
            raise TimeoutError


def _decoded(address: str, status: int, body: bytes) -> dict[str, Any]:
    text = body.decode(errors="replace")
    if status != 200:
        raise StatusError(f"{address}: it answers {status}: {text[:200].strip()!r}")
    try:
        found = json.loads(text)
        summarize({address: found})
        return dict(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise StatusError(f"{address}: what answers there is no reducer of this version")
