"""The table as text, 80 columns wide for ordinary sizes, and its JSON lines."""

from __future__ import annotations

import platform
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reducer import __version__
from reducer.units import format_count
from reducer.version import PROTOCOL_VERSION
from reducer_tools.bench.events import Facts, Row
from reducer_tools.bench.progress import short_size
from reducer_tools.bench.sweep import Sweep

_COLUMNS = (
    *("size", "count", "type", "redop"),
    *("avg", "min", "max"),
    *("algbw", "busbw", "wire", "#wrong"),
)
_WIDTH = 80
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def congestion_control() -> str:
    """The default congestion control of this host's kernel."""
    try:
        return _CONGESTION.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def versions() -> dict[str, str]:
    return {
        "open-reduction-server": __version__,
        "protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel": platform.release(),
    }


class Table:
    """The table as text: a header, one line for each row, a footer."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        sweep = facts.sweep
        counts = sweep.counts(facts.world_size)
        sizes = [short_size(sweep.row_bytes(count, facts.world_size)) for count in counts]
        self._widths = (
            max(len("# size"), *map(len, sizes)),
            max(len("count"), len(str(counts[-1]))),
            max(len("type"), len(sweep.dtype)),
            max(len("redop"), len(_op_name(sweep))),
            *(7, 7, 7),
            *(5, 5, 5),
            len("#wrong"),
        )

    def header(self) -> str:
        facts, sweep = self.facts, self.facts.sweep
        known = versions()
        ours = known.pop("open-reduction-server")
        chunks = ", ".join(f"{short_size(c)} from {short_size(n)}" for n, c in facts.chunk_table)
        wire = sweep.wire.name.lower()
        lines = [
            f"open-reduction-server {ours}; {_pairs(known)}",
            f"{format_count(facts.world_size, 'worker')}, {_describe_lanes(facts.lanes)}: "
            + ", ".join(facts.addresses),
            f"{sweep.collective}; on the wire {wire}; chunks {chunks}",
            f"congestion control of this host: {congestion_control()}",
            f"{sweep.warmup} warm-up and {sweep.iters} measured iterations of each size, "
            + ("every element compared" if sweep.check else "not checked"),
            "times: of the slowest rank, after a barrier; wire: of the busiest worker, one way",
        ]
        return "\n".join([*_commented(lines), "#", *self._heads()])

    def row(self, row: Row) -> str:
        sweep = self.facts.sweep
        times = (row.average, min(row.seconds), max(row.seconds))
        return self._line(
            short_size(row.bytes),
            str(row.count),
            sweep.dtype,
            _op_name(sweep),
            *(_microseconds(seconds) for seconds in times),
            *(_rate(rate) for rate in (row.algbw, row.busbw, row.wire)),
            "N/A" if row.wrong is None else str(row.wrong),
        )

    def footer(self, rows: Sequence[Row]) -> str:
        wrong = total_wrong(rows)
        return (
            f"# average bus bandwidth: {_rate(average_busbw(rows))} GB/s\n"
            f"# total #wrong: {'not checked' if wrong is None else wrong}"
        )

    def _heads(self) -> list[str]:
        line = "#" + self._line(*_COLUMNS)[1:]
        over = list(" " * len(line))
        for text, end in (("time (us)", line.index("max") + 3), ("GB/s", line.index("wire") + 4)):
            over[end - len(text) : end] = text
        return ["#" + "".join(over)[1:].rstrip(), line]

    def _line(self, *cells: str) -> str:
        return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, self._widths, strict=True))


def average_busbw(rows: Sequence[Row]) -> float:
    """Mean bus bandwidth of all sizes in GB/s, as nccl-tests prints it."""
    return statistics.fmean(row.busbw for row in rows)


def total_wrong(rows: Sequence[Row]) -> int | None:
    """Wrong elements over all sizes; None if the results were not checked."""
    found = [row.wrong for row in rows if row.wrong is not None]
    return sum(found) if found else None


def facts_json(facts: Facts) -> dict[str, Any]:
    sweep = facts.sweep
    return {
        "event": "start",
        "versions": versions(),
        "collective": sweep.collective,
        "type": sweep.dtype,
        "redop": _op_name(sweep),
        "wire_dtype": sweep.wire.name.lower(),
        "workers": facts.world_size,
        "reducers": list(facts.addresses),
        "lanes": list(facts.lanes),
        "congestion_control": congestion_control(),
        "chunk_table": facts.chunk_table,
        "iters": sweep.iters,
        "warmup_iters": sweep.warmup,
    }


def row_json(row: Row) -> dict[str, Any]:
    return {
        "event": "size",
        "bytes": row.bytes,
        "count": row.count,
        "seconds": {
            "average": row.average,
            "median": statistics.median(row.seconds),
            "min": min(row.seconds),
            "max": max(row.seconds),
        },
        "algbw_gbs": row.algbw,
        "busbw_gbs": row.busbw,
        "wire_gbs": row.wire,
        "sent_bytes": row.sent,
        "received_bytes": row.received,
        "wrong": row.wrong,
    }


def end_json(rows: Sequence[Row], ring: dict[str, Any]) -> dict[str, Any]:
    return {
        "event": "end",
        "average_busbw_gbs": average_busbw(rows),
        "wrong": total_wrong(rows),
        **({"ring": ring} if ring else {}),
    }


def _commented(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        wrapped = textwrap.wrap(line, _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
        yield from ("# " + ("  " if number else "") + part for number, part in enumerate(wrapped))


def _op_name(sweep: Sweep) -> str:
    return sweep.op if sweep.reduces else "none"


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _describe_lanes(lanes: Sequence[int]) -> str:
    if len(set(lanes)) == 1:
        return f"{format_count(len(lanes), 'reducer')} x {format_count(lanes[0], 'lane')}"
    return f"{format_count(len(lanes), 'reducer')} x {', '.join(map(str, lanes))} lanes"


def _microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.1f}" if value < 100_000 else f"{value:.0f}"


def _rate(gigabytes: float) -> str:
    return f"{gigabytes:.{3 if gigabytes < 10 else 2 if gigabytes < 100 else 1}f}"
