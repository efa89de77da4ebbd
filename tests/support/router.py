"""Hosts around a router that silently drops traffic as the test wants (root only).

Each host is a network namespace with its own link to the router's namespace. `Router.drop` is a
black hole in one direction: no host sees an error, as with a cable that is cut far away.
"""

from __future__ import annotations

from collections.abc import Sequence

from reducer_tools.netlab import Lab, Nic, run_tool

_ROUTER = "router"


class Router(Lab):
    """Builds hosts and router on entry, deletes them on exit. Raises LabError."""

    def __init__(self, hosts: Sequence[str]) -> None:
        super().__init__(dict.fromkeys(hosts, Nic()))
        self._dropped: list[tuple[str, ...]] = []

    def address(self, host: str) -> str:
        return f"10.214.{self._numbers[host]}.2"

    def drop(self, source: str, target: str) -> None:
        """From now on drop everything that `source` sends to `target`."""
        rule = ("from", self.address(source), "to", self.address(target), "blackhole")
        self._rule("add", rule)
        self._dropped.append(rule)

    def heal(self) -> None:
        """Forward everything again."""
        while self._dropped:
            self._rule("delete", self._dropped.pop())

    def _rule(self, verb: str, rule: tuple[str, ...]) -> None:
        run_tool("ip", "-n", self.namespace(_ROUTER), "rule", verb, *rule)

    def _build(self) -> None:
        router = self.namespace(_ROUTER)
        self._add_namespace(router)
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        run_tool("ip", "netns", "exec", router, "sh", "-c", forward)
        for host, number in self._numbers.items():
            self._connect(host, number, router)

    def _connect(self, host: str, number: int, router: str) -> None:
        name, port = self.namespace(host), f"port{number}"
        self._add_namespace(name)
        run_tool(
            *("ip", "-n", router, "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "netns", name),
        )
        gateway = f"10.214.{number}.1"
        run_tool("ip", "-n", router, "address", "add", f"{gateway}/30", "dev", port)
        run_tool("ip", "-n", router, "link", "set", port, "up")
        run_tool("ip", "-n", name, "address", "add", f"{self.address(host)}/30", "dev", "eth0")
        run_tool("ip", "-n", name, "link", "set", "eth0", "up")
        run_tool("ip", "-n", name, "route", "add", "default", "via", gateway)
