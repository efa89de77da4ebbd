"""All-reduce over loopback: reducers beside gloo, alternating in one run, every result checked.

    python bench/loopback.py --mib 64 --workers 4 --reducers 1 --repeats 7

Prints one JSON line for each measurement and a table at the end (``--quiet``: the table alone).
A time is that of the slowest rank, from a common barrier.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

import reducer_client
from reducer_client.config import keep_gloo_on_loopback

CONTENDERS = ("reducers", "gloo")
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """What is measured."""

    mib: float
    workers: int
    reducers: int
    lanes: int
    warmup: int
    repeats: int


def main() -> int:
    case, quiet = _parse_arguments()
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    context = {"congestion_control": _congestion_control(), **asdict(case)}
    for turn, measured in enumerate(_measure(case)):
        for name, seconds in measured.items():
            is_warmup = turn < case.warmup
            if not is_warmup:
                times[name].append(seconds)
            if not quiet:
                line = {"what": name, "seconds": round(seconds, 6), "warmup": is_warmup, **context}
                print(json.dumps(line), flush=True)
    _print_table(case, times)
    return 0


def _measure(case: Case) -> Iterator[dict[str, float]]:
    """For each turn the time of the slowest rank for each contender."""
    spawn = multiprocessing.get_context("spawn")
    with (
        reducer_client.local_reducers(case.reducers, lanes=case.lanes) as addresses,
        tempfile.TemporaryDirectory() as folder,
    ):
        connections, processes = [], []
        for rank in range(case.workers):
            here, there = spawn.Pipe(duplex=False)
            arguments = (case, rank, addresses, f"{folder}/store", there)
            process = spawn.Process(target=_work, args=arguments, daemon=True)
            process.start()
            there.close()
            connections.append(here)
            processes.append(process)
        try:
            for _ in range(case.warmup + case.repeats):
                by_rank = [connection.recv() for connection in connections]
                yield {name: max(times[name] for times in by_rank) for name in CONTENDERS}
            for process in processes:
                process.join(30)
        except EOFError:
            sys.exit("a worker failed; its traceback is above")
        finally:
            for process in processes:
                process.kill()
                process.join()


def _work(case: Case, rank: int, addresses: list[str], store: str, results: Connection) -> None:
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    world = case.workers
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    count = int(case.mib * (1 << 20)) // 4
    given = _integers(count, rank)
    total = sum(_integers(count, r) for r in range(world))
    array = np.empty(count, np.float32)
    tensor = torch.from_numpy(array)
    with reducer_client.connect(addresses, job="bench", rank=rank, world_size=world) as group:
        actions: dict[str, Callable[[], object]] = {
            "reducers": lambda: group.all_reduce(array, out=array, key="bench").wait(),
            "gloo": lambda: dist.all_reduce(tensor),
        }
        for turn in range(case.warmup + case.repeats):
            # Who goes first changes, so that neither always finds the other's warm cache.
            order = CONTENDERS if turn % 2 == 0 else CONTENDERS[::-1]
            times = {}
            for name in order:
                np.copyto(array, given)
                dist.barrier()
                started = time.perf_counter()
                actions[name]()
                times[name] = time.perf_counter() - started
                if not np.array_equal(array, total):
                    raise AssertionError(f"{name}: wrong sum in turn {turn} on rank {rank}")
            results.send(times)
    dist.destroy_process_group()


def _integers(count: int, rank: int) -> FloatArray:
    """Small integers as float32: every order of summing gives the same value."""
    return np.random.default_rng(rank).integers(-1000, 1000, count).astype(np.float32)


def _print_table(case: Case, times: dict[str, list[float]]) -> None:
    print(
        f"\nall-reduce of {case.mib:g} MiB float32, {case.workers} workers, {case.reducers} "
        f"reducer(s) of {case.lanes} lane(s), loopback, {_congestion_control()} on both sides, "
        f"{case.repeats} measured each, every sum checked\n"
    )
    print(f"{'':<9} {'median ms':>10} {'min ms':>9} {'max ms':>9} {'GB/s':>7}")
    for name in CONTENDERS:
        milliseconds = [seconds * 1000 for seconds in times[name]]
        middle = statistics.median(milliseconds)
        rate = case.mib * (1 << 20) / middle / 1e6
        print(
            f"{name:<9} {middle:>10.1f} {min(milliseconds):>9.1f} {max(milliseconds):>9.1f} "
            f"{rate:>7.2f}"
        )
    ratio = statistics.median(times["gloo"]) / statistics.median(times["reducers"])
    print(f"\nspeed relative to gloo: {ratio:.2f}")


def _congestion_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()


def _parse_arguments() -> tuple[Case, bool]:
    parser = argparse.ArgumentParser(description="All-reduce over loopback, beside gloo.")
    parser.add_argument("--mib", type=float, default=64)
    for name, default in (
        ("workers", 4),
        ("reducers", 1),
        ("lanes", 1),
        ("warmup", 2),
        ("repeats", 7),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quiet", action="store_true")
    options = vars(parser.parse_args())
    quiet = options.pop("quiet")
    return Case(**options), quiet


if __name__ == "__main__":
    sys.exit(main())
