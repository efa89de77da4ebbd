"""One rank: joins every contender, then sums arrays on orders of the coordinator.

python -m bench.allreduce.worker --rank 0 --coordinator PATH
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.allreduce.cases import Array, Case
from bench.allreduce.contenders import Action, Contender, open_contender
from bench.allreduce.crew import Duty


class Worker:
    """Carries out orders: each method is an order and returns the answer."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._workers = 0
        self._interface = ""
        self._contenders: dict[str, Contender] = {}
        # State of the current case and turn
        self._case = Case(0, "fp32")
        self._given: Array = np.empty(0)
        self._total: Array = np.empty(0)
        self._arrays: list[Array] = []
        self._actions: list[Action] = []

    def join(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Meet the other ranks in every contender."""
        self._workers = order["workers"]
        self._interface = order["interface"]
        for name in order["contenders"]:
            self._contenders[name] = open_contender(name, order, self._rank)
        return {}

    def take(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Make the arrays of a case."""
        self._case = Case(order["size"], order["type"])
        self._given = self._case.array(self._rank, self._workers)
        self._total = self._case.total(self._workers)
        self._arrays = [np.empty_like(self._given) for _ in range(self._case.rounds)]
        return {}

    def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Fill the arrays for one turn of a contender."""
        contender = self._contenders[order["contender"]]
        for array in self._arrays:
            np.copyto(array, self._given)
        self._actions = [contender.bind(array, self._case) for array in self._arrays]
        return {}

    def go(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Run the turn; returns seconds of each round, and CPU seconds and bytes sent of all."""
        sent = bytes_sent(self._interface)
        used = time.process_time()
        clock = time.perf_counter
        times = [clock()]
        for action in self._actions:
            action()
            times.append(clock())
        return {
            "seconds": [later - earlier for earlier, later in itertools.pairwise(times)],
            "cpu": time.process_time() - used,
            "sent": bytes_sent(self._interface) - sent,
        }

    def check(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Compare every sum of the turn."""
        for number, array in enumerate(self._arrays):
            wrong = self._count_wrong(array)
            if wrong:
                raise AssertionError(
                    f"{order['contender']}: {wrong} of {array.size} sums are wrong on rank "
                    f"{self._rank} in round {number} of a turn of {self._case}"
                )
        return {}

    def _count_wrong(self, array: Array) -> int:
        if not self._case.tolerance:
            return int(np.count_nonzero(array != self._total))
        return int(np.count_nonzero(np.abs(array - self._total) > self._case.tolerance))

    def leave(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Leave every contender."""
        for contender in self._contenders.values():
            contender.close()
        return {}


def bytes_sent(interface: str) -> int:
    """Bytes sent by an interface of this namespace; offloaded segments count one header."""
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[8])
    raise ValueError(f"no interface {interface!r} here")


def congestion_control() -> str:
    """The congestion control of new connections in this namespace."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--coordinator", required=True)
    options = parser.parse_args()
    worker = Worker(options.rank)
    with Duty(options.coordinator, options.rank, congestion=congestion_control()) as duty:
        for order in duty.orders():
            duty.answer(**getattr(worker, order["order"])(order))


if __name__ == "__main__":
    main()
