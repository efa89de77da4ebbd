"""The lab: a namespace for each host, links with limited rates, and a switch between them.

Each host is a namespace with ``eth0``. The bridge has a namespace of its own, so a lab does not
touch the machine's own network, and deleting the namespaces deletes everything. **Both** ends of
every link have a token bucket, because a qdisc shapes only the traffic that leaves its device: the
end in the host limits what the host sends, the end at the bridge what the host receives, including
incast.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reducer_tools.netlab.commands import LabError, find_tool, require_tools, run_tool
from reducer_tools.netlab.congestion import DEFAULT, allow_congestion
from reducer_tools.netlab.isolation import NAMES, inside
from reducer_tools.netlab.nic import Nic

_PREFIX = "orslab"
# A switch has no firewall. With br_netfilter, every frame would pass the machine's firewall, which
# takes a twentieth of a reducer's CPU time.
_NO_FIREWALL = (
    'for f in /proc/sys/net/bridge/bridge-nf-call-*tables; do test ! -e "$f" || echo 0 > "$f"; done'
)


class Lab:
    """Builds the hosts on entry, deletes them on exit. Raises `LabError`.

    ``congestion``: the TCP congestion control of all hosts; None for the kernel's default.
    """

    def __init__(self, hosts: Mapping[str, Nic], congestion: str | None = "cubic") -> None:
        if len(hosts) > 250:
            raise LabError(f"{len(hosts)} hosts: at most 250 have an address in one lab")
        self.hosts = dict(hosts)
        self.congestion = congestion or DEFAULT.read_text(encoding="ascii").strip()
        self._chosen = congestion is not None
        self._numbers = {host: number for number, host in enumerate(self.hosts, 1)}

    def __enter__(self) -> Self:
        require_root()
        clean()
        if self._chosen:
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
        return [find_tool("ip") or "ip", "netns", "exec", self.namespace(host), *arguments]

    def popen(self, host: str, arguments: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program on the host. The pid is the program's, since ``ip`` executes it."""
        return subprocess.Popen(self.command(host, arguments), text=True, **options)

    def inside(self, host: str) -> AbstractContextManager[None]:
        """A block in which this thread, and the processes that it starts, are on the host."""
        return inside(self.namespace(host))

    def namespace(self, host: str) -> str:
        """The name of the host's namespace, for `enter`."""
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
        command = ("sh", "-c", set_default, self.congestion, str(DEFAULT))
        run_tool("ip", "netns", "exec", name, *command)
        run_tool("ip", "-n", name, "link", "set", "lo", "up")


def clean() -> None:
    """Delete the namespaces of labs whose process has ended."""
    for name in _namespaces():
        match = re.match(rf"{_PREFIX}-(\d+)-", name)
        if match and not Path("/proc", match[1]).exists():
            run_tool("ip", "netns", "delete", name)


def _limit(namespace: str, device: str, nic: Nic) -> None:
    """Limit a device.

    A bucket of 256 KB suits up to 1 Gbit/s: a smaller one throttles, a larger one admits bursts.
    One of 64 KB also cuts the packets of TSO into frames, which costs CPU time.
    """
    bits = nic.bits_per_second
    if bits is None:
        return
    burst = "256kb" if bits <= 1e9 else "512kb"
    run_tool(
        *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf"),
        *("rate", str(nic.rate), "burst", burst, "limit", nic.limit),
    )


def _namespaces() -> list[str]:
    return sorted(path.name for path in NAMES.iterdir()) if NAMES.exists() else []


def require_root() -> None:
    """Raises LabError, with what to do, if this process cannot build a lab."""
    require_tools()
    if os.geteuid() != 0:
        raise LabError("a lab makes network namespaces: run it as root")
