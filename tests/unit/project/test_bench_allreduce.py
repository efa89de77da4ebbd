"""Cases and options of `bench.allreduce`, and that it finds a wrong sum."""

from __future__ import annotations

import numpy as np
import pytest

from bench.allreduce.cases import TYPES, Case
from bench.allreduce.contenders import can_reduce
from bench.allreduce.options import parse_options
from bench.allreduce.worker import Worker


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("workers", [1, 4, 64])
def test_every_partial_sum_is_exact(kind: str, workers: int) -> None:
    case = Case(1 << 20, kind)
    total = case.total(workers)
    for order in (range(workers), reversed(range(workers))):
        partial = np.zeros_like(total)
        for rank in order:
            partial += case.array(rank, workers)
        assert np.array_equal(partial, total)
    assert total.nbytes == 1 << 20
    assert len(np.unique(total)) > 10 and len(np.unique(case.array(0, workers))) > 3


def test_two_equal_chunks_are_nowhere() -> None:
    total = Case(8 << 20, "fp32").total(4)
    chunks = total.reshape(-1, 1 << 14)
    assert len(np.unique(chunks, axis=0)) == len(chunks)


def test_small_rounds_are_repeated_within_a_turn() -> None:
    assert [Case(size, "fp32").rounds for size in (4096, 1 << 20, 64 << 20)] == [30, 4, 1]


def test_mpi_reduces_fp32_alone() -> None:
    able = {name: [k for k in TYPES if can_reduce(name, Case(4, k))] for name in ("gloo", "mpi")}
    assert able == {"gloo": list(TYPES), "mpi": ["fp32"]}


def test_options_are_read_in_the_words_of_the_command_line() -> None:
    text = (
        "--sizes 4K,64MiB,12 --dtypes bf16,fp32-bf16 --peers none --rate 500mbit "
        "--reducer-rate 1gbit --chunk-table 0:64K,8M:128K"
    )
    options = parse_options(text.split())
    assert options.sizes == (4096, 64 << 20, 12)
    assert options.types == ("bf16", "fp32-bf16")
    assert options.contenders == ("reducers",)
    assert options.rates == ("500mbit", "1gbit")
    assert options.chunk_table == ((0, 64 << 10), (8 << 20, 128 << 10))
    assert parse_options([]).rates == ("1gbit", "1gbit")
    assert parse_options(["--peers", "gloo,mpi"]).contenders == ("reducers", "gloo", "mpi")
    assert parse_options(["--peers", "plugin,reducers"]).contenders == ("plugin", "reducers")


@pytest.mark.parametrize(
    "arguments",
    [
        "--sizes 6",
        "--sizes 4Q",
        "--workers 0",
        "--repeats none",
        "--dtypes fp64",
        "--peers nccl",
        "--rate 1gigabit",
        "--rate 0gbit",
    ],
)
def test_bad_arguments_end_with_a_message(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments.split())
    assert ended.value.code == 2
    assert arguments.split()[0] in capsys.readouterr().err


def test_a_wrong_sum_ends_the_worker() -> None:
    worker = Worker(rank=0)
    worker._workers = 2
    worker.take({"size": 64, "type": "fp32"})
    worker._arrays = [worker._total.copy(), worker._total.copy()]
    worker.check({"contender": "gloo"})
    worker._arrays[1][3] += 1
    with pytest.raises(AssertionError, match="gloo: 1 of 16 sums are wrong on rank 0 in round 1"):
        worker.check({"contender": "gloo"})
