"""`reducer bench` without reducers: options, sizes, expected results and the printed table."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from reducer.kernels import load
from reducer.wire.codes import PROTOCOL_MINOR, Collective, DType, ReduceOp
from reducer_tools.bench import pattern
from reducer_tools.bench.display import Display
from reducer_tools.bench.events import Event, Facts, Row, Turn
from reducer_tools.bench.pattern import PERIOD, Pattern, count_differences, start
from reducer_tools.bench.progress import Progress
from reducer_tools.bench.ring_comparison import Rates
from reducer_tools.bench.sweep import COLLECTIVES, DTYPES, OPS, Sweep
from reducer_tools.cli import main
from reducer_tools.cli.sizes import parse_bytes
from tests.support import oracle
from tests.support.block_rounds import BlocksRound

SWEEP = Sweep(
    collective="all_reduce",
    dtype="float32",
    op="sum",
    wire_dtype=None,
    min_bytes=4 << 10,
    max_bytes=64 << 10,
    step_factor=2,
    step_bytes=None,
    iters=3,
    warmup=1,
    check=True,
)
FACTS = Facts(SWEEP, 4, ("a:2222", "b:2222"), (8, 8), ((0, 65536), (1 << 20, 131072)))
MILLISECOND = Row(
    bytes=1_000_000,
    count=250_000,
    seconds=(0.001, 0.002, 0.003),
    bus_factor=1.5,
    sent=1_010_000,
    received=1_020_000,
    wrong=0,
)


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["bench", *arguments])
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4K", 4096),
        ("64m", 64 << 20),
        ("1G", 1 << 30),
        ("64MiB", 64 << 20),
        ("64MB", 64 * 10**6),
    ],
)
def test_sizes_are_written_as_in_nccl_tests(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "0K", "-4K", "4KK", "1.5G", "K", "4 K 4", "1e6"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected 1 byte or more, such as"):
        parse_bytes(text)


def test_sizes_step_by_factor_or_by_bytes() -> None:
    assert [4 * count for count in SWEEP.counts(1)] == [4096, 8192, 16384, 32768, 65536]
    thirds = replace(SWEEP, step_factor=3)
    assert [4 * count for count in thirds.counts(1)] == [4096, 12288, 36864]
    stepped = replace(SWEEP, max_bytes=13_000, step_bytes=4096)
    assert [4 * count for count in stepped.counts(1)] == [4096, 8192, 12288]
    assert replace(SWEEP, max_bytes=4096).counts(1) == [1024]


def test_a_size_counts_the_parts_of_all_ranks() -> None:
    for collective in COLLECTIVES:
        sweep = replace(SWEEP, collective=collective, max_bytes=4096)
        parts = 4 if collective in ("all_gather", "reduce_scatter") else 1
        assert sweep.counts(4) == [1024 // parts]
        assert sweep.row_bytes(1024 // parts, 4) == 4096


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    factors = {c: replace(SWEEP, collective=c).bus_factor(4) for c in COLLECTIVES}
    assert factors == {
        "all_reduce": 1.5,
        "broadcast": 1.0,
        "all_gather": 0.75,
        "reduce_scatter": 0.75,
    }
    assert MILLISECOND.algbw == pytest.approx(0.5)
    assert MILLISECOND.busbw == pytest.approx(0.75)
    assert MILLISECOND.wire == pytest.approx(0.51)


def test_any_option_changes_the_digest() -> None:
    changed = [replace(SWEEP, op="max"), replace(SWEEP, warmup=2), replace(SWEEP, check=False)]
    assert len({sweep.digest() for sweep in [SWEEP, replace(SWEEP), *changed]}) == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-b", "4X"), "expected 1 byte or more, such as 4096, 4K, 64M, 1G or 64MB; got '4X'"),
        (("-b", "64K", "-e", "4K"), "minbytes: expected at most maxbytes (4096), got 65536"),
        (("-b", "2"), "minbytes: expected at least 4 for all_reduce of float32 over 2 ranks"),
        (("-f", "2", "-i", "4K"), "--stepfactor and --stepbytes: expected one of them"),
        (("-b", "4K", "-i", "1"), "stepbytes 1: expected at most 10,000 sizes from 4,096 to"),
        (("-d", "complex64"), "complex64"),
        (("-o", "xor"), "xor"),
        (("-d", "half", "--wire-dtype", "bfloat16"), "expected only with a reduction of float32"),
        (("--collective", "broadcast", "--wire-dtype", "float16"), "got float16 with broadcast"),
        (
            ("--collective", "reduce_scatter", "-d", "bfloat16"),
            "datatype: reducer bench runs no reduce_scatter of",
        ),
        (("--rank", "1"), "--workers and --rank: expected one of them, got both"),
        (("--world-size", "2"), "--workers and --world-size: expected one of them, got both"),
        (("--lanes", "2"), "--lanes: expected only with --local"),
        (("--reducer-gbps", "1"), "reducer-gbps needs worker-gbps as well"),
        (("--worker-gbps", "0"), "worker-gbps: expected a number above 0, got 0"),
        (("--addresses", "b:0"), "port '0' is not a number from 1 to 65535"),
        (("--addresses", "a", "--local", "1"), "--addresses and --local: expected one of them"),
    ],
)
def test_bad_options_are_named(arguments: tuple[str, ...], text: str) -> None:
    where = () if "--addresses" in arguments else ("--addresses", "a:1")
    output = refusal("--workers", "2", *where, *arguments)
    assert text in " ".join(output.split())


def test_without_ranks_it_says_how_to_start_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "REDUCER_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert "--workers starts all ranks on this host" in refusal("--addresses", "a:1")


def _result(sweep: Sweep, world_size: int, rank: int, turn: int, count: int) -> Any:
    """The result of a correct reducer for the contributions of the ranks."""
    made = Pattern(sweep, world_size)
    parts = world_size if sweep.collective == "reduce_scatter" else 1
    sent = [made.sent(r, count * parts)[start(turn) :][: count * parts] for r in range(world_size)]
    if sweep.collective == "broadcast":
        return sent[0].copy()
    if sweep.collective == "all_gather":
        return np.concatenate(sent)
    wire = sent
    if sweep.wire is DType.BFLOAT16 and sweep.narrows:
        wire = [oracle.to_bfloat16(array) for array in sent]
    result = oracle.reduce(sweep.reduce_op, sweep.wire, wire)
    if sweep.wire is DType.BFLOAT16 and sweep.narrows:
        result = oracle.from_bfloat16(result)
    return result[rank * count : (rank + 1) * count] if parts > 1 else result


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_law_of_the_sum_is_what_is_expected(dtype: str, op: Any) -> None:
    sweep = replace(SWEEP, dtype=dtype, op=op)
    result = _result(sweep, 3, rank=1, turn=7, count=5000)
    assert Pattern(sweep, 3).count_wrong(result, 1, 7) == 0
    if dtype.startswith(("float", "bfloat")):
        # values that show mistakes
        assert len(np.unique(result)) > (100 if result.itemsize > 1 else 10)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_has_its_expectation(collective: Any) -> None:
    sweep = replace(SWEEP, collective=collective)
    for rank in range(3):
        result = _result(sweep, 3, rank, turn=2, count=PERIOD + 5)
        assert Pattern(sweep, 3).count_wrong(result, rank, 2) == 0
        another = (rank + 1) % 3
        same = collective in ("all_reduce", "broadcast", "all_gather")
        assert (Pattern(sweep, 3).count_wrong(result, another, 2) == 0) == same


def test_narrow_values_travel_as_the_law_says() -> None:
    sweep = replace(SWEEP, wire_dtype="bfloat16", op="mean")
    result = _result(sweep, 3, rank=0, turn=0, count=5000)
    assert Pattern(sweep, 3).count_wrong(result, 0, 0) == 0
    exact = _result(replace(sweep, wire_dtype=None), 3, rank=0, turn=0, count=5000)
    assert Pattern(sweep, 3).count_wrong(exact, 0, 0) > 4000


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize(("wire", "down"), [("int8", "same"), ("e3m0", "bfloat16")])
def test_quantised_values_travel_as_the_law_says(wire: Any, down: Any, collective: Any) -> None:
    sweep = replace(SWEEP, wire_dtype=wire, down=down, op="mean", collective=collective)
    count = 256 * PERIOD + 700 if wire == "int8" and collective == "all_reduce" else 5_000
    parts = 3 if collective == "reduce_scatter" else 1
    sent = [Pattern(sweep, 3).sent(rank, count * parts)[start(7) :][: count * parts] for rank in
            range(3)]  # fmt: skip
    round_ = BlocksRound(
        sweep.wire, "", collective=Collective[collective.upper()], op=ReduceOp.MEAN, kernels=load()
    )
    whole = round_.expected(dict(enumerate(sent)), 3)
    made = Pattern(sweep, 3)
    for rank in range(parts):
        result = whole[rank * count : (rank + 1) * count].copy()
        assert made.count_wrong(result, rank, 7) == 0
        result[[0, 4_000, count - 1]] += 1
        assert made.count_wrong(result, rank, 7) == 3


def test_wrong_sums_are_counted_element_by_element() -> None:
    made = Pattern(SWEEP, 4)
    right = _result(SWEEP, 4, rank=0, turn=5, count=600_000)  # compared in more than one block
    assert made.count_wrong(right, 0, 5) == 0
    for places in ([0], [599_999], [3, 262_143, 262_144, 300_000]):
        wrong = right.copy()
        wrong.view(np.uint32)[places] ^= 1  # the lowest bit
        assert made.count_wrong(wrong, 0, 5) == len(places)


def test_stale_misplaced_and_unsummed_results_are_wrong() -> None:
    made = Pattern(SWEEP, 4)
    right = _result(SWEEP, 4, rank=0, turn=5, count=131_072)
    assert made.count_wrong(right, 0, 6) > 100_000, "stale: the previous iteration"
    chunk = 65_536 // 4
    swapped = np.concatenate([right[chunk : 2 * chunk], right[:chunk], right[2 * chunk :]])
    assert made.count_wrong(swapped, 0, 5) > 30_000, "swapped chunks"
    own = made.sent(0, 131_072)[start(5) :][:131_072]
    assert made.count_wrong(own, 0, 5) > 130_000, "its own contribution"
    assert made.count_wrong(np.zeros(131_072, np.float32), 0, 5) == 131_072


def test_another_order_of_summing_is_wrong() -> None:
    sent = [pattern.contribution(SWEEP, rank) for rank in range(4)]
    backwards = oracle.reduce(ReduceOp.SUM, DType.FLOAT32, sent[::-1])
    assert count_differences(backwards, pattern.reduced(SWEEP, 4), 0) > 1000


def test_iterations_begin_at_whole_cache_lines_within_the_period() -> None:
    starts = [start(turn) for turn in range(1000)]
    assert max(starts) < PERIOD and all(begin % 64 == 0 for begin in starts)
    assert all(a != b for a, b in pairwise(starts))


def _shown(rows: list[Row], rates: Rates, as_json: bool = False, facts: Facts = FACTS) -> str:
    out = io.StringIO()
    show = Display(out, Progress(io.StringIO()), rates, as_json)
    events: list[Event] = [facts, Turn(4096, 1, 4), *rows]
    for event in events:
        show(event)
    show.end()
    return out.getvalue()


ROWS = [
    Row(4096 << n, 1024 << n, (1.5e-4, 2.5e-4), 1.5, 4200 << n, 4200 << n, wrong)
    for n, wrong in ((0, 0), (1, 0), (2, 17), (3, 0), (4, 0))
]


def test_the_table_is_aligned_within_80_columns() -> None:
    lines = _shown(ROWS, Rates(1, 0.5)).splitlines()
    assert max(map(len, lines)) <= 80
    head = next(line for line in lines if line.startswith("# size"))
    assert head[1:].split() == [
        *("size", "count", "type", "redop", "avg", "min", "max"),
        *("algbw", "busbw", "wire", "#wrong"),
    ]
    rows = [line for line in lines if not line.startswith("#")]
    assert {len(row) for row in rows} == {len(head)}
    assert rows[0].split() == [
        *("4K", "1024", "float32", "sum", "200.0", "150.0", "250.0"),
        *("0.020", "0.031", "0.021", "0"),
    ]
    assert lines[lines.index(head) - 1].index("time (us)") + 9 == head.index("max") + 3
    assert lines[lines.index(rows[-1]) + 1 :][:2] == [
        "# average bus bandwidth: 0.190 GB/s",
        "# total #wrong: 17",
    ]


def test_the_table_holds_large_sizes_slow_networks_and_fast_ones() -> None:
    sweep = replace(SWEEP, min_bytes=1 << 30, max_bytes=1 << 30)
    slow = replace(MILLISECOND, bytes=1 << 30, count=1 << 28, seconds=(9.9,))
    fast = replace(slow, seconds=(0.01,))
    text = _shown([slow, fast], Rates(), facts=replace(FACTS, sweep=sweep))
    head, *rows = [line for line in text.splitlines() if re.match(r"# size| ", line)]
    rows = [row for row in rows if row.startswith("    1G")]
    assert [len(row) for row in rows] == [len(head)] * 2
    assert rows[0].split()[4] == "9900000" and rows[1].split()[7:9] == ["107.4", "161.1"]


def test_the_header_says_what_was_measured() -> None:
    text = " ".join(_shown(ROWS, Rates()).replace("\n#", " ").split())
    for part in (
        "open-reduction-server ",
        f"protocol 1.{PROTOCOL_MINOR}",
        "4 workers, 2 reducers x 8 lanes: a:2222, b:2222",
        "all_reduce; on the wire float32; chunks 64K from 0, 128K from 1M",
        "congestion control of this host: ",
        "1 warm-up and 3 measured iterations of each size, every element compared",
    ):
        assert part in text


def test_what_nobody_compared_is_not_called_right() -> None:
    unchecked = [replace(row, wrong=None) for row in ROWS]
    sweep = replace(SWEEP, check=False)
    text = _shown(unchecked, Rates(), facts=replace(FACTS, sweep=sweep))
    assert "# total #wrong: not checked" in text and "not checked" in text.splitlines()[5]
    assert all(line.endswith(" N/A") for line in text.splitlines() if line.startswith("  "))


def test_json_lines_hold_the_same() -> None:
    text = _shown(ROWS, Rates(1, 0.5), as_json=True)
    start_line, *sizes, end = (json.loads(line) for line in text.splitlines())
    assert (start_line["event"], start_line["workers"], start_line["lanes"]) == ("start", 4, [8, 8])
    assert [size["bytes"] for size in sizes] == [row.bytes for row in ROWS]
    assert sizes[2]["wrong"] == 17 and end["wrong"] == 17
    assert sizes[0]["seconds"] == {
        "average": pytest.approx(2e-4),
        "median": pytest.approx(2e-4),
        "min": 1.5e-4,
        "max": 2.5e-4,
    }
    assert sizes[0]["busbw_gbs"] == pytest.approx(4096 / 2e-4 / 1e9 * 1.5)
    assert end["ring"]["model_winner"] == "ring" and end["ring"]["winner"] == "reducers"


@pytest.mark.parametrize(
    ("reducer_gbps", "text"),
    [(1.0, "the ring wins 1.33x"), (1.34, "reducers win 1.01x"), (2, "reducers win 1.50x")],
)
def test_it_says_when_a_ring_would_win(reducer_gbps: float, text: str) -> None:
    """Two reducers and four workers of 1 Gbit/s: 2.67 Gbit/s are needed in all."""
    row = replace(MILLISECOND, bytes=64 << 20, count=16 << 20)
    lines = [" ".join(line.split()) for line in _shown([row], Rates(1, reducer_gbps)).splitlines()]
    assert "# 64M, model: a ring would need 2(n-1)/n x N/BW = 842 ms;" in lines
    model = next(line for line in lines if "max(N/BW, W*N/(R*BW_r))" in line)
    assert model.endswith(text)


def test_measured_times_are_held_against_a_ring() -> None:
    row = replace(MILLISECOND, bytes=64 << 20, count=16 << 20, seconds=(0.421,))
    measured = [line for line in _shown([row], Rates(1)).splitlines() if "measured:" in line]
    assert measured == [
        "# 64M, measured: 421 ms; a ring at 1 Gbit/s needs 842 ms: reducers win 2.00x"
    ]
    alone = _shown([row], Rates()).splitlines()[-1]
    assert alone == "# 64M, measured: 421 ms; a ring is faster only above 2 Gbit/s a worker"


def test_there_is_no_ring_beside_one_worker_or_a_broadcast() -> None:
    alone = replace(FACTS, world_size=1)
    broadcast = replace(FACTS, sweep=replace(SWEEP, collective="broadcast"))
    for facts in (alone, broadcast):
        assert "a ring" not in _shown(ROWS, Rates(1, 1), facts=facts)


def test_a_run_that_ended_before_its_first_row_has_no_footer() -> None:
    out = io.StringIO()
    Display(out, Progress(io.StringIO()), Rates(), False).end()
    assert out.getvalue() == ""
