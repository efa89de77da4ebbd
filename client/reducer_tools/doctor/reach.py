"""How one reducer is reached from this host: its name, its port, a proof of the key, a round.

The doctor is a worker like any other, on the client's engine: what it cannot do, no worker can. It
is the only rank of a job of its own, so that it meets no other worker.
"""

from __future__ import annotations

import math
import secrets
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import reducer_client
from reducer.status.ask import StatusError, ask
from reducer_client.errors import (
    AuthenticationError,
    IntegrityError,
    JoinError,
    ProtocolError,
    ProtocolVersionError,
    QuotaExceededError,
    ReducerError,
    ReducerUnavailableError,
)
from reducer_tools.doctor.findings import Finding, fault
from reducer_tools.doctor.host import interface_of

# The first that fits.
_CODES: dict[type[ReducerError], str] = {
    ProtocolVersionError: "version-skew",
    ProtocolError: "no-reducer",
    QuotaExceededError: "quota",
    JoinError: "job-in-use",
    IntegrityError: "damaged-bytes",
    ReducerUnavailableError: "no-answer",
}
# What a worker cannot prove depends on what it has.
_UNPROVEN = {"open": "key-wanted", "psk": "wrong-key", "tls": "wrong-certificate"}
_SMALL_ROUNDS = 5
# Rounds of the probe: as long as this, where so few bytes suffice, so that a slow network is not
# taken for none.
_PROBE_SECONDS = 0.02
_LEAST_PROBE, _MOST_PROBE = 64 << 10, 8 << 20
_TCP_INFO = struct.Struct("60x I 4x I")  # linux/tcp.h: the MTU of the path, round trip in us


@dataclass(frozen=True)
class Login:
    """How a worker of this host joins: as the one rank of ``job``, in ``mode``.

    ``key_file`` as ``connect`` takes it.
    """

    job: str
    mode: str
    key_file: str | None
    timeout: float


@dataclass
class Reach:
    """What is known of one reducer; None or "": it did not come to that, or nobody tells.

    ``interface``: ours that leads there. ``round_trip``: of the network alone. Times in seconds,
    ``rate`` in bits a second, each way. Of its metrics port, if that answers: ``version``,
    ``kernels``, and how far its clock is ahead of ours.
    """

    address: str
    ip: str = ""
    interface: str = ""
    round_trip: float | None = None
    path_mtu: int | None = None
    round_seconds: float | None = None
    lanes: int | None = None
    rate: float | None = None
    version: str | None = None
    kernels: str | None = None
    clock_ahead: float | None = None
    fault: Finding | None = None


class _TroubleError(Exception):
    """What keeps a worker from this reducer."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def examine(address: str, login: Login, metrics_port: int) -> Reach:
    """Everything but the bandwidth, for which reducers must be asked one by one."""
    reach = Reach(address)
    try:
        _dial(reach, login.timeout)
        with _join([address], login) as group:
            reach.lanes = len(group.stats(login.timeout)["reducers"])
            reach.round_seconds = _small_round(group, login.timeout)
    except _TroubleError as error:
        reach.fault = fault(error.code, address, str(error))
    except ReducerError as error:
        reach.fault = fault(_code(error, login), address, f"{error}{_hint(error)}")
    if reach.round_trip is not None:
        _ask_metrics(reach, metrics_port, login.timeout)
    return reach


def measure_rate(addresses: Sequence[str], login: Login, seconds: float) -> float:
    """Bits a second, each way, of one worker with these reducers; raises ReducerError.

    0 seconds: only join and leave.
    """
    with _join(addresses, login) as group:
        if not seconds:
            return 0.0
        size = _LEAST_PROBE
        while _round(group, size, login.timeout) < _PROBE_SECONDS and size < _MOST_PROBE:
            size *= 2
        rounds, spent = 0, 0.0
        while spent < seconds:
            spent += _round(group, size, login.timeout)
            rounds += 1
    return rounds * size * 8 / spent


def explain(error: ReducerError, login: Login, addresses: Sequence[str]) -> Finding:
    """A fault that shows where single reducers have none."""
    return fault(_code(error, login), ", ".join(addresses), str(error))


def _join(addresses: Sequence[str], login: Login) -> reducer_client.Group:
    return reducer_client.connect(
        addresses,
        job=login.job,
        run_id=f"doctor-{secrets.token_hex(8)}",  # the last one may not be over on all lanes
        rank=0,
        world_size=1,
        connect_timeout=login.timeout,
        step_timeout=login.timeout,
        key_file=login.key_file,
    )


def _code(error: ReducerError, login: Login) -> str:
    if isinstance(error, AuthenticationError):
        return _UNPROVEN[login.mode]
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), "failed")


def _hint(error: ReducerError) -> str:
    """What the client cannot know: that the port is open."""
    if not isinstance(error, ReducerUnavailableError):
        return ""
    return (
        ". The port is open: a reducer that hangs or drains, or no reducer at all (its log tells)"
    )


def _dial(reach: Reach, seconds: float) -> None:
    """Connect and hang up: the system's errors tell a closed port from a host that is gone."""
    host, _, port = reach.address.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise _TroubleError(
            "unknown-name",
            f"the name {host!r} cannot be resolved here ({why}): is it spelled as in the cluster's "
            "DNS, and does this host ask that DNS (/etc/resolv.conf)?",
        ) from None
    reach.ip = str(found[0][4][0])
    try:
        with socket.create_connection((host, int(port)), seconds) as sock:
            reach.ip = sock.getpeername()[0]
            reach.interface = interface_of(sock.getsockname()[0])
            told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            reach.path_mtu, microseconds = _TCP_INFO.unpack(told)
            reach.round_trip = microseconds / 1e6
    except ConnectionRefusedError:
        raise _TroubleError(
            "closed-port",
            f"{reach.ip} refuses connections to port {port}: nothing listens there. Does `reducer "
            "serve` run on that host, with this --port, and with a --host that others reach "
            "(0.0.0.0; the default is loopback)?",
        ) from None
    except TimeoutError:
        raise _TroubleError(
            "no-answer",
            f"no answer from {reach.ip} port {port} in {seconds:g} s: the host is down, or a "
            f"firewall drops what goes there. Let TCP port {port} pass; workers need no other",
        ) from None
    except OSError as error:
        raise _TroubleError(
            "no-route",
            f"{reach.ip} port {port}: {error.strerror}: no route leads there from this host "
            f"(ip route get {reach.ip})",
        ) from None


def _small_round(group: reducer_client.Group, seconds: float) -> float:
    """The median of a few rounds of four bytes, the first left out."""
    times = [_round(group, 4, seconds) for _ in range(_SMALL_ROUNDS + 1)]
    return statistics.median(times[1:])


def _round(group: reducer_client.Group, size: int, seconds: float) -> float:
    """How long a round of so many bytes takes."""
    values = np.zeros(size // 4, np.float32)
    start = time.monotonic()
    group.all_reduce(values, out=values).wait(seconds)
    return time.monotonic() - start


def _ask_metrics(reach: Reach, port: int, seconds: float) -> None:
    """Its metrics port is on loopback by default: mostly nobody tells."""
    host, _, _ = reach.address.rpartition(":")
    asked = time.time()
    try:
        answer = ask(f"{host}:{port}", seconds)
    except StatusError:
        return
    answered = time.time()
    reach.version = str(answer["version"])
    reach.kernels = ", ".join(sorted({str(lane["kernels"]) for lane in answer["lanes"]}))
    if "time" in answer:  # it was taken at some moment in between: the least that it can be
        ahead = float(answer["time"]) - (asked + answered) / 2
        sure = max(0.0, abs(ahead) - (answered - asked) / 2)
        reach.clock_ahead = math.copysign(sure, ahead)
