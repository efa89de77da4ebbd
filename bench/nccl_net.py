"""The NCCL plugin's point-to-point transport with 0, 2 and 4 threads at each end.

    python -m bench.nccl_net                      # over loopback
    python -m bench.nccl_net --rate 10gbit        # two hosts with limited NICs; root

One connection carries messages as NCCL does: 8 in flight, and a thread that polls. 512 KiB is the
largest message of NCCL's rings. The plans (threads x sockets) take turns; the table has medians,
and the ratio to the first plan. "in calls" is the share of the time that the polling thread spends
in long calls of the plugin: NCCL's thread cannot serve other connections then. On a machine with
other work more threads also get a larger part of the processors, so read the ratios with the load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from reducer_tools.netlab import Lab, Nic

PROGRAM = Path("build/native/nccl_plugin/tests/nccl_net_speed").absolute()
SIZES = {"4 KiB": 4 << 10, "512 KiB": 512 << 10}

Start = Callable[[str, Sequence[str]], subprocess.Popen[str]]


@contextmanager
def hosts(rate: str | None) -> Iterator[Start]:
    """A function that starts a program on the host "a" or "b"."""
    if rate is None:
        environment = {**os.environ, "NCCL_SOCKET_IFNAME": "lo"}
        yield lambda _, words: subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, text=True
        )
        return
    with Lab({"a": Nic(rate), "b": Nic(rate)}) as lab:
        environment = {**os.environ, "NCCL_SOCKET_IFNAME": "eth0"}
        yield lambda host, words: lab.popen(host, words, env=environment, stdout=subprocess.PIPE)


def measure(start: Start, plan: str, size: int, count: int) -> list[float]:
    """GB/s, and the shares of the time in long calls: sender, receiver."""
    words = [*plan.split("x"), str(size), str(count)]
    with start("b", [str(PROGRAM), "receive", *words]) as receiver:
        assert receiver.stdout is not None
        handle = receiver.stdout.readline().strip()
        with start("a", [str(PROGRAM), "send", *words, handle]) as sender:
            sent, _ = sender.communicate(timeout=300)
            got, _ = receiver.communicate(timeout=300)
    if sender.returncode or receiver.returncode:
        raise RuntimeError(f"exit codes {sender.returncode} (sender), {receiver.returncode}")
    seconds, receives = (float(word) for word in got.split())
    return [size * count / seconds / 1e9, float(sent.split()[1]), receives]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", help="of both NICs, for instance 10gbit; else loopback")
    parser.add_argument(
        "--plans", default="0x4,2x4,4x4",
        help="REDUCER_NET_THREADS x REDUCER_NSOCKS, the first is compared to; default %(default)s",
    )  # fmt: skip
    parser.add_argument("--megabytes", type=int, default=2000, help="of one run; default 2000")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    plans = options.plans.split(",")
    print("message     plan    GB/s  ratio (least to most)   in calls: sender  receiver")
    with hosts(options.rate) as start:
        for name, size in SIZES.items():
            # Small messages are slower by far.
            count = max(options.megabytes * 1_000_000 // size // (10 if size < 65_536 else 1), 10)
            runs: dict[str, list[list[float]]] = {plan: [] for plan in plans}
            for _ in range(options.rounds):
                for plan in plans:
                    runs[plan].append(measure(start, plan, size, count))
            for plan in plans:
                rate, sends, receives = map(statistics.median, zip(*runs[plan], strict=True))
                ratios = [
                    mine[0] / first[0]
                    for mine, first in zip(runs[plan], runs[plans[0]], strict=True)
                ]
                print(
                    f"{name:8} {plan:>8} {rate:7.2f}  {statistics.median(ratios):5.2f} "
                    f"({min(ratios):.2f} to {max(ratios):.2f})      {sends:14.2f} {receives:9.2f}"
                )


if __name__ == "__main__":
    main()
