"""Runs the reducers and workers of a comparison on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import torch
import torch.distributed as dist

from bench.compression.compare import Outcome, compare
from bench.compression.digits import Digits, save_digits
from bench.compression.methods import METHODS
from reducer_client import local_reducers
from reducer_client.config import keep_gloo_on_loopback
from reducer_client.torch import Options

# The outcomes of rank 0, one for each seed.
Runs: TypeAlias = list[dict[str, Outcome]]


def run(names: Sequence[str], workers: int, reducers: int, seeds: int, epochs: int) -> Runs:
    """Train with each method and seed; raises RuntimeError if ranks end with different bits."""
    with (
        tempfile.TemporaryDirectory() as folder,
        local_reducers(reducers) as addresses,
        ProcessPoolExecutor(workers, get_context("spawn")) as pool,
    ):
        save_digits(Path(folder) / "digits.npz")
        arguments = (workers, names, seeds, epochs, addresses, Path(folder))
        started = [pool.submit(_work, rank, *arguments) for rank in range(workers)]
        ranks = [future.result() for future in started]
    for seed in range(seeds):
        for name in names:
            if len({of_rank[seed][name].digest for of_rank in ranks}) != 1:
                raise RuntimeError(f"{name}, seed {seed + 1}: the ranks hold different parameters")
    return ranks[0]


def _work(
    rank: int,
    workers: int,
    names: Sequence[str],
    seeds: int,
    epochs: int,
    addresses: list[str],
    folder: Path,
) -> Runs:
    torch.set_num_threads(1)
    keep_gloo_on_loopback()
    dist.init_process_group(
        "reducer",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=workers,
        pg_options=Options(addresses=addresses, job="compression"),
    )
    methods = {name: METHODS[name] for name in names}
    digits = Digits(rank, workers, folder / "digits.npz")
    try:
        return [compare(methods, digits, seed, epochs) for seed in range(1, seeds + 1)]
    finally:
        dist.destroy_process_group()
