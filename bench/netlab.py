"""Hosts with limited NICs on one machine: network namespaces around a bridge (root only).

    with Lab({"w0": Nic("1gbit"), "r0": Nic("1gbit")}) as lab:
        lab.popen("r0", ["reducer", "serve", "--host", lab.address("r0"), "--insecure"])

    python -m bench.netlab --hosts 4 --rate 1gbit     # calibrate: the rate of one TCP flow
    python -m bench.netlab --clean                    # remove namespaces that a killed run left

Each host is a namespace with ``eth0``. The bridge has a namespace of its own, so a lab does not
touch the machine's own network, and deleting the namespaces deletes everything. **Both** ends of
every link have a token bucket, because a qdisc shapes only the traffic that leaves its device: the
end in the host limits what the host sends, the end at the bridge what the host receives, including
incast.

Every host has the same TCP congestion control, and so have all compared programs. A namespace may
use only the machine's ``tcp_allowed_congestion_control``; a lab adds its choice to that list first.
If the list is read-only, as in a container, all hosts keep the kernel's default, and
`Lab.congestion` names it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

_PREFIX = "orslab"
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_DEFAULT = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
# A switch has no firewall. With br_netfilter, every frame would pass the machine's firewall, which
# takes a twentieth of a reducer's CPU time.
_NO_FIREWALL = (
    'for f in /proc/sys/net/bridge/bridge-nf-call-*tables; do test ! -e "$f" || echo 0 > "$f"; done'
)
# A full frame of 1,514 bytes carries 1,448 bytes of TCP payload.
PAYLOAD_SHARE = 1448 / 1514


@dataclass(frozen=True)
class Nic:
    """A NIC. ``rate`` has tc's syntax (``1gbit``), None for no limit; ``limit`` is the queue."""

    rate: str | None = None
    limit: str = "4mb"

    def __post_init__(self) -> None:
        if self.bits_per_second == 0:
            raise ValueError(f"rate {self.rate!r}: expected more than 0")

    @property
    def bits_per_second(self) -> float | None:
        """The rate, None for no limit. Raises ValueError for a rate that tc does not accept."""
        if self.rate is None:
            return None
        match = re.fullmatch(r"([0-9.]+)([kmg]?)bit", self.rate.lower())
        if match is None:
            raise ValueError(f"rate {self.rate!r}: expected a number with kbit, mbit or gbit")
        return float(match[1]) * {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]]

    @property
    def bytes_per_second(self) -> float | None:
        bits = self.bits_per_second
        return None if bits is None else bits / 8


class LabError(Exception):
    """The lab cannot be built here; the text gives the reason."""


class Lab:
    """Builds the hosts on entry, deletes them on exit. Raises `LabError`."""

    def __init__(self, hosts: Mapping[str, Nic], congestion: str = "cubic") -> None:
        if len(hosts) > 250:
            raise LabError(f"{len(hosts)} hosts: at most 250 have an address in one lab")
        self.hosts = dict(hosts)
        self.congestion = congestion
        self._numbers = {host: number for number, host in enumerate(self.hosts, 1)}

    def __enter__(self) -> Self:
        _require_root()
        clean()
        self.congestion = allow_congestion(self.congestion)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the hosts. The programs in them should have ended: they lose their network."""
        for name in _namespaces():
            if name.startswith(self.namespace("")):
                run_tool("ip", "netns", "delete", name)

    def address(self, host: str) -> str:
        """The host's IPv4 address in the lab."""
        return f"10.213.0.{self._numbers[host]}"

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        """The command line that runs ``arguments`` on the host."""
        return ["ip", "netns", "exec", self.namespace(host), *arguments]

    def popen(self, host: str, arguments: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program on the host. The pid is the program's, since ``ip`` executes it."""
        return subprocess.Popen(self.command(host, arguments), text=True, **options)

    def namespace(self, host: str) -> str:
        return f"{_PREFIX}-{os.getpid()}-{host}"

    def _build(self) -> None:
        switch = self.namespace("switch")
        run_tool("ip", "netns", "add", switch)
        run_tool("ip", "netns", "exec", switch, "sh", "-c", _NO_FIREWALL)
        run_tool("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run_tool("ip", "-n", switch, "link", "set", "bridge", "up")
        for host, nic in self.hosts.items():
            self._add_host(host, nic, switch)

    def _add_host(self, host: str, nic: Nic, switch: str) -> None:
        name, port = self.namespace(host), f"port{self._numbers[host]}"
        self._add_namespace(name)
        run_tool(
            *("ip", "-n", switch, "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "netns", name),
        )
        run_tool("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        run_tool("ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        run_tool("ip", "-n", name, "link", "set", "eth0", "up")
        _limit(name, "eth0", nic)
        _limit(switch, port, nic)

    def _add_namespace(self, name: str) -> None:
        run_tool("ip", "netns", "add", name)
        # A new namespace has the kernel's default already, and may not be allowed to set it.
        set_default = 'test "$0" = "$(cat "$1")" || echo "$0" > "$1"'
        command = ("sh", "-c", set_default, self.congestion, str(_DEFAULT))
        run_tool("ip", "netns", "exec", name, *command)
        run_tool("ip", "-n", name, "link", "set", "lo", "up")


def clean() -> None:
    """Delete the namespaces of labs whose process has ended."""
    for name in _namespaces():
        match = re.match(rf"{_PREFIX}-(\d+)-", name)
        if match and not Path("/proc", match[1]).exists():
            run_tool("ip", "netns", "delete", name)


def _limit(namespace: str, device: str, nic: Nic) -> None:
    """Limit a device. A bucket of 256 KB suits up to 1 Gbit/s: a smaller one throttles, a larger
    one admits bursts."""
    bits = nic.bits_per_second
    if bits is None:
        return
    burst = "256kb" if bits <= 1e9 else "512kb"
    run_tool(
        *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf"),
        *("rate", str(nic.rate), "burst", burst, "limit", nic.limit),
    )


def _namespaces() -> list[str]:
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def _require_root() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise LabError(f"a lab needs {' and '.join(missing)} (Debian: apt-get install iproute2)")
    if os.geteuid() != 0:
        raise LabError("a lab makes network namespaces: run it as root")


def allow_congestion(name: str, list_: Path = _ALLOWED) -> str:
    """Allow namespaces to use ``name`` and return it; return the default if that is not possible.

    The name stays in the list, since another lab may be about to use it. Raises `LabError` if the
    kernel does not have ``name``.
    """
    available = _AVAILABLE.read_text(encoding="ascii").split()
    if name not in available:
        raise LabError(f"congestion control {name!r}: this kernel has {', '.join(available)}")
    allowed = list_.read_text(encoding="ascii").split()
    if name in allowed:
        return name
    try:
        list_.write_text(" ".join([*allowed, name]), encoding="ascii")
    except OSError as error:
        default = _DEFAULT.read_text(encoding="ascii").strip()
        print(
            f"netlab: all hosts use {default}, the kernel's default: {name} is not in {list_}, "
            f"and nobody may write it here ({error.strerror})",
            file=sys.stderr,
        )
        return default
    return name


def run_tool(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"`{' '.join(arguments)}`: {done.stderr.strip() or done.returncode}")


def calibrate(lab: Lab, sender: str, receiver: str, seconds: float = 2.0) -> float:
    """Bytes per second of payload that one TCP flow carries between two hosts."""
    module = [sys.executable, "-m", "bench.netlab"]
    sink = lab.popen(receiver, [*module, "--sink", lab.address(receiver)], stdout=subprocess.PIPE)
    try:
        assert sink.stdout is not None
        port = _line(sink.stdout)
        flood = f"{lab.address(receiver)}:{port}"
        source = lab.popen(sender, [*module, "--flood", flood, "--seconds", str(seconds)])
        rate = float(_line(sink.stdout))
        source.wait(30)
    finally:
        sink.kill()
        sink.wait()
        if sink.stdout is not None:
            sink.stdout.close()
    return rate


def _line(stream: IO[str]) -> str:
    line = stream.readline()
    if not line:
        raise LabError("a calibration program ended without an answer")
    return line.strip()


def _sink(host: str) -> None:
    with socket.create_server((host, 0)) as server:
        print(server.getsockname()[1], flush=True)
        peer, _ = server.accept()
        buffer = bytearray(1 << 20)
        total = peer.recv_into(buffer)
        # The bucket is full at first, so the first bytes pass faster than the rate.
        started, skipped = time.perf_counter(), 0
        while size := peer.recv_into(buffer):
            total += size
            if total < 4 << 20:
                started, skipped = time.perf_counter(), total
        print((total - skipped) / (time.perf_counter() - started), flush=True)
        peer.close()


def _flood(address: str, seconds: float) -> None:
    host, _, port = address.rpartition(":")
    data = bytes(1 << 16)
    until = time.perf_counter() + seconds
    with socket.create_connection((host, int(port))) as peer:
        while time.perf_counter() < until:
            peer.sendall(data)


def main() -> int:
    parser = argparse.ArgumentParser(description="Calibrate hosts with limited NICs.")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--clean", action="store_true", help="remove what killed runs have left")
    parser.add_argument("--sink", help=argparse.SUPPRESS)
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    if options.sink:
        _sink(options.sink)
        return 0
    if options.flood:
        _flood(options.flood, options.seconds)
        return 0
    try:
        if options.clean:
            _require_root()
            clean()
        else:
            _calibrate_all(options)
    except LabError as error:
        sys.exit(f"netlab: {error}")
    return 0


def _calibrate_all(options: argparse.Namespace) -> None:
    nic = Nic(options.rate)
    names = [f"h{number}" for number in range(options.hosts)]
    with Lab(dict.fromkeys(names, nic), options.congestion) as lab:
        print(f"{options.rate} NICs, {lab.congestion}; at best {PAYLOAD_SHARE:.1%} is payload")
        for sender, receiver in itertools.pairwise(names):
            rate = calibrate(lab, sender, receiver, options.seconds)
            nominal = nic.bytes_per_second or rate
            print(f"{sender} -> {receiver}: {rate / 1e6:8.1f} MB/s  {rate / nominal:6.1%}")


if __name__ == "__main__":
    sys.exit(main())
