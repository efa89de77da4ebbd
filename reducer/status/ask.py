"""Asks running reducers for their statistics, on their metrics ports."""

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
from urllib.parse import urlsplit

from reducer.status.summary import summarize

DEFAULT_PORT = 2223
_PAGE = "/api/stats"
_MAX_ANSWER = 16 << 20
_MAX_AT_ONCE = 32


class StatusError(Exception):
    """A reducer did not answer; the text names its address and what to try."""


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host``, ``host:port`` or ``[ipv6]:port``; ValueError for anything else."""
    text = text.strip()
    host: str | None = None
    port: int | None = None
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"//{text}")
        if parts.netloc == text and "@" not in text:
            host, port = parts.hostname, parts.port
    if not host or port == 0:
        raise ValueError(f"address {text!r}: expected host, host:port or [ipv6]:port")
    return host, port or DEFAULT_PORT


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
    host, port = parse_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.connect()
        with _deadline(connection.sock, seconds):
            connection.request("GET", _PAGE)
            with connection.getresponse() as answer:
                body = answer.read(_MAX_ANSWER)
    except socket.gaierror as error:
        raise StatusError(f"{address}: {error.strerror}") from None
    except TimeoutError:
        raise StatusError(
            f"{address}: no answer in {seconds:g} s; is it reachable from here, and not frozen?"
        ) from None
    except (http.client.HTTPException, ConnectionResetError):
        raise StatusError(
            f"{address}: what answers there is no metrics port of a reducer; workers connect to "
            "another port (2222) than `reducer status` (2223, --metrics-port)"
        ) from None
    except OSError as error:
        raise StatusError(
            f"{address}: {error.strerror}; does `reducer serve` run there, with its metrics on "
            "this address (--metrics-host, loopback by default) and port (--metrics-port)?"
        ) from None
    finally:
        connection.close()
    return _decoded(address, answer.status, body)


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
