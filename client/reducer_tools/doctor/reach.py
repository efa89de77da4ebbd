"""Examines one reducer from this host: resolves the name, connects, joins and runs a round.

The doctor uses the client's engine, so what fails for the doctor fails for every worker here. The
doctor is the only rank of its own job, so that it cannot disturb a running job.
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
from reducer.nic import interface_of
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

# The first class that matches gives the code.
_CODES: dict[type[ReducerError], str] = {
    ProtocolVersionError: "version-skew",
    ProtocolError: "no-reducer",
    QuotaExceededError: "quota",
    JoinError: "job-in-use",
    IntegrityError: "damaged-bytes",
    ReducerUnavailableError: "no-answer",
}
# The code of a failed authentication, by the security mode of this host.
_UNPROVEN = {"open": "key-wanted", "psk": "wrong-key", "tls": "wrong-certificate"}
_SMALL_ROUNDS = 5
# The probe doubles the size of its rounds until one takes this long or has _MOST_PROBE bytes. On a
# slow network rounds stay small, so that they do not time out.
_PROBE_SECONDS = 0.02
_LEAST_PROBE, _MOST_PROBE = 64 << 10, 8 << 20
_TCP_INFO = struct.Struct("60x I 4x I")  # linux/tcp.h: the MTU of the path, round trip in us


@dataclass(frozen=True)
class Login:
    """How the doctor joins: as the only rank of ``job``, in the security mode ``mode``.

    ``key_file`` is as for ``connect``. ``timeout`` is in seconds.
    """

    job: str
    mode: str
    key_file: str | None
    timeout: float


@dataclass
class Reach:
    """The facts that the doctor found about one reducer. None or "" means unknown.

    Times are in seconds. ``interface`` is this host's interface to the reducer. ``round_trip`` is
    the round trip time of the network alone, ``round_seconds`` the time of a small round, ``rate``
    the bandwidth in bits per second, each way. ``version``, ``kernels`` and ``clock_ahead`` (of the
    reducer's clock relative to ours) come from the metrics port, if it answers.
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
    """The reason why a worker cannot use this reducer; ``code`` is the finding's code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def examine(address: str, login: Login) -> Reach:
    """Examine one reducer, without its bandwidth.

    Several reducers can be examined at the same time, but their bandwidths must be measured one
    after another.
    """
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
        _ask_metrics(reach, login.timeout)
    return reach


def measure_rate(addresses: Sequence[str], login: Login, seconds: float) -> float:
    """Measure the bits per second, each way, between one worker and these reducers.

    With 0 seconds, only join and leave. Raises ReducerError.
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
    """The finding that reports this error of a job with these reducers."""
    return fault(_code(error, login), ", ".join(addresses), str(error))


def _join(addresses: Sequence[str], login: Login) -> reducer_client.Group:
    return reducer_client.connect(
        addresses,
        job=login.job,
        run_id=f"doctor-{secrets.token_hex(8)}",  # lanes may not have ended the previous run yet
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
    """Text to add to the client's error, which cannot say that the port is open."""
    if not isinstance(error, ReducerUnavailableError):
        return ""
    stop = "" if str(error).endswith("?") else "."
    return (
        f"{stop} The port is open: the reducer hangs or drains (see its log), or another program "
        "listens there"
    )


def _dial(reach: Reach, seconds: float) -> None:
    """Connect and close. The system's errors distinguish a closed port from an absent host."""
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
            f"firewall drops the packets. Allow TCP port {port}, the only port that workers need",
        ) from None
    except OSError as error:
        raise _TroubleError(
            "no-route",
            f"{reach.ip} port {port}: {error.strerror}: no route leads there from this host "
            f"(ip route get {reach.ip})",
        ) from None


def _small_round(group: reducer_client.Group, seconds: float) -> float:
    """The median time in seconds of some rounds of four bytes, after one warm-up round."""
    times = [_round(group, 4, seconds) for _ in range(_SMALL_ROUNDS + 1)]
    return statistics.median(times[1:])


def _round(group: reducer_client.Group, size: int, seconds: float) -> float:
    """The time in seconds of one all-reduce of ``size`` bytes."""
    values = np.zeros(size // 4, np.float32)
    start = time.monotonic()
    group.all_reduce(values, out=values).wait(seconds)
    return time.monotonic() - start


def _ask_metrics(reach: Reach, seconds: float) -> None:
    """Fill in the facts from the metrics port.

    The port is on loopback by default, so that no answer is normal.
    """
    asked = time.time()
    try:
        answer = ask(reach.address, seconds)
    except StatusError:
        return
    answered = time.time()
    reach.version = str(answer["version"])
    reach.kernels = ", ".join(sorted({str(lane["kernels"]) for lane in answer["lanes"]}))
    if "time" in answer:
        # The reducer read its clock between our two times: report the smallest possible difference.
        ahead = float(answer["time"]) - (asked + answered) / 2
        sure = max(0.0, abs(ahead) - (answered - asked) / 2)
        reach.clock_ahead = math.copysign(sure, ahead)
