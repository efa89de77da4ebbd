"""The tables of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from bench.scale.outcome import Outcome
from bench.scale.sweep import LaneCount, Row
from reducer.units import format_size

MIB = 1 << 20
TIMES = (
    "W", "lanes", "default: free", "paid", "lane CPU", "best chunk", "free", "paid", "lane CPU",
    "worker CPU", "core us/contribution", "us/chunk",
)  # fmt: skip
ROOM = (
    "W", "default: used", "reserved", "best: used", "reserved", "budget", "NIC queue",
    "connections: lane", "worker", "all", "idle: lane CPU", "worker frames/s",
)  # fmt: skip
LANES = (
    "lanes", "chunk", "free", "paid", "lane CPU", "Gbit/s each way", "connections of a worker",
)  # fmt: skip


def print_rows(rows: Sequence[Row]) -> None:
    """Print two tables for each size: times, then memory and connections of lanes and workers."""
    for size, group in groupby(rows, key=lambda row: row.case.round_bytes):
        of_size = list(group)
        print(f"\nall-reduce of {format_bytes(size)}: time / (N/BW), CPU as shares of one core\n")
        print_table(TIMES, map(_times, of_size))
        print("\nmemory of a lane (MiB), connections, and what an idle job costs\n")
        print_table(ROOM, map(_room, of_size))
        for row in of_size:
            if row.paid.refused:
                print(f"W={row.case.workers}, default chunk table: {row.paid.refused}")


def _times(row: Row) -> Iterable[object]:
    best = row.best
    return (
        row.case.workers, row.case.all_lanes, _x(row, row.free), _x(row, row.paid),
        f"{row.paid.timing.lane_busy:.0%}", format_bytes(row.best_chunk), _x(row, row.best_free),
        _x(row, best), f"{best.timing.lane_busy:.0%}", f"{best.timing.worker_busy:.0%}",
        f"{best.contribution_us:.1f}", f"{best.chunk_us:.0f}",
    )  # fmt: skip


def _room(row: Row) -> Iterable[object]:
    case, paid, best = row.case, row.paid, row.best
    return (
        case.workers, *(f"{size / MIB:.0f}" for size in (
            paid.peak, paid.reserved, best.peak, best.reserved, case.memory / case.lanes,
            best.queue_peak,
        )),
        case.workers, case.all_lanes, f"{case.workers * case.all_lanes:,}",
        f"{row.idle_lane_busy:.1%}", f"{row.idle_worker_frames:,.0f}",
    )  # fmt: skip


def _x(row: Row, outcome: Outcome) -> str:
    return "refused" if outcome.refused else f"{row.relative(outcome):.3f}"


def print_lanes(found: Sequence[LaneCount], cores: int) -> None:
    """Print the speed of the lanes of one host, and the conclusion."""
    case = found[0].case
    gbit, price = case.rate * 8 / 1e9, case.lane_prices.s_per_gb
    print(
        f"\nhosts of {cores} cores and {gbit:g} Gbit/s, {case.workers} workers and as many "
        f"reducers, {format_bytes(case.round_bytes)}: time / (N/BW)\n"
    )
    print_table(LANES, map(_lanes, found))
    print(f"\n{gbit:g} Gbit/s in and out are {price * gbit / 8:.2f} cores at {price:g} CPU s/GB.")
    enough = [one for one in found if one.case.lanes <= cores and one.is_enough]
    if not enough:
        print(f"No number of lanes up to {cores} serves {gbit:g} Gbit/s in and out.")
    for one in (enough[0], enough[-1]) if enough else ():
        print(
            f"{one.case.lanes} lanes of a {cores}-core VM serve {gbit:g} Gbit/s in and out: "
            f"{one.paid_x / one.free_x:.3f} x the time of lanes whose CPU costs nothing, "
            f"{one.paid.timing.lane_busy:.0%} of a core each."
        )


def _lanes(one: LaneCount) -> Iterable[object]:
    gbit = one.case.rate * 8 / 1e9
    return (
        one.case.lanes, format_bytes(one.chunk), f"{one.free_x:.3f}", f"{one.paid_x:.3f}",
        f"{one.paid.timing.lane_busy:.0%}", f"{gbit / one.paid_x:.1f}", one.case.all_lanes,
    )  # fmt: skip


def print_table(titles: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table; a column is as wide as its widest cell."""
    cells = [list(titles), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def format_bytes(size: int) -> str:
    """A size in MB if it is a multiple of 1 MB, else in binary units."""
    is_decimal = size >= 10**6 and size % 10**6 == 0
    return f"{size // 10**6} MB" if is_decimal else format_size(size)
