"""Runs as aligned text of at most 120 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.report.results import Run, Series, Topology
from reducer.units import format_size

_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_NONE = "-"
LEGEND = """\
n: measurements, each the time of the slowest rank; ms: their median; spread: min/p25/p75/max in %
alg: array / time; bus: alg x 2(W-1)/W, as nccl-tests; wire: what left a worker's NIC / time
xN/BW: time / (array / rate of a worker's NIC); xbest: time / the least that the NICs need (x 1.045
for headers): max(N/BW, W N/(R BW of a reducer)), without reducers 2(W-1)/W N/BW; N as it travels
/gloo, /mpi: times as fast as it in this run; with ? no fair figure: too few cores for all workers,
       where threads of gloo and MPI that wait take them from those that work
reducer, worker: CPU seconds of all reducers for 1 GB received, of a worker for 1 GB of its arrays
busy: share of all cores, whatever ran"""

# A column: two lines of heading, and the function that gives the cell of a series.
Column = tuple[str, str, Callable[[Run, Series], str]]
_COLUMNS: Sequence[Column] = (
    ("", "size", lambda run, s: short_size(s.size)),
    ("", "count", lambda run, s: _format_count(s.count)),
    ("", "type", lambda run, s: short_type(s)),
    ("", "contender", lambda run, s: s.contender),
    ("", "n", lambda run, s: str(len(s.seconds))),
    ("median", "ms", lambda run, s: _format_ms(s.median)),
    ("spread", "%", lambda run, s: _format_spread(s)),
    ("alg", "GB/s", lambda run, s: _decimals(s.algbw, 3)),
    ("bus", "GB/s", lambda run, s: _decimals(s.busbw, 3)),
    ("wire", "GB/s", lambda run, s: _decimals(s.wire_rate, 3)),
    ("", "xN/BW", lambda run, s: _decimals(s.to_line, 3)),
    ("", "xbest", lambda run, s: _decimals(s.to_bound, 3)),
    ("", "/gloo", lambda run, s: _format_speed(run, s, "gloo")),
    ("", "/mpi", lambda run, s: _format_speed(run, s, "mpi")),
    ("reducer", "s/GB", lambda run, s: _decimals(s.reducer_cost, 2)),
    ("worker", "s/GB", lambda run, s: _decimals(s.worker_cost, 2)),
    ("", "busy", lambda run, s: _NONE if s.busy is None else f"{s.busy:.0%}"),
)
_LEFT = ("type", "contender")


def format_runs(runs: Sequence[Run]) -> str:
    """A table for each run that has results, then the meaning of the columns."""
    tables = [format_run(run) for run in runs if run.series]
    return "\n\n".join([*tables, LEGEND]) if tables else "nothing was measured"


def format_run(run: Run) -> str:
    """The title and a line for each contender and case; columns without a value are left out."""
    cells = [[cell(run, series) for *_, cell in _COLUMNS] for series in run.series]
    shown = [i for i in range(len(_COLUMNS)) if any(row[i] != _NONE for row in cells)]
    heads = [[_COLUMNS[i][0] for i in shown], [_COLUMNS[i][1] for i in shown]]
    rows = [*heads, *([row[i] for i in shown] for row in cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(shown))]
    left = [_COLUMNS[i][1] in _LEFT for i in shown]
    lines = [_align(row, widths, left) for row in rows]
    for at in range(len(run.series) - 1, 0, -1):
        if run.series[at].case != run.series[at - 1].case:
            lines.insert(at + 2, "")
    return "\n".join([*_format_context(run), *lines])


def describe(at: Topology) -> str:
    """The hosts and their NICs as text."""
    nics = "loopback" if at.rate is None else f"{at.rate} NICs"
    if at.reducer_rate != at.rate:
        nics += f", reducers' {at.reducer_rate}"
    lanes = "" if at.lanes == 1 else f" of {at.lanes} lanes"
    reducers = f"{at.reducers} reducer{'s' * (at.reducers != 1)}"
    hosted = f" and {at.workers} hosted ones" if at.hosted else ""
    return f"{at.workers} workers, {reducers}{hosted}{lanes}, {nics}"


def short_size(size: int) -> str:
    """A size as on the command line, such as 64M."""
    return format_size(size).removesuffix("iB")


def short_type(series: Series) -> str:
    """A type as on the command line: fp32, or fp32-bf16 if the wire has another dtype."""
    name = _SHORT[series.dtype]
    if series.dtype == series.wire_dtype:
        return name
    return f"{name}-{_SHORT.get(series.wire_dtype, series.wire_dtype)}"


def _format_context(run: Run) -> list[str]:
    at, facts = run.series[0].topology, run.context
    title = f"all-reduce: {describe(at)}, {at.congestion}, transport {at.transport}"
    for name, value in (("chunk table", at.chunk_table), ("credit", at.credit)):
        title += "" if value == "default" else f", {name} {value}"
    loads = [facts["load"][0], *run.end.get("load", ["?"])[:1]]
    machine = f"{facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}"
    load = f"load {loads[0]} before, {loads[1]} after"
    return [title, f"commit {facts['commit']}; {facts['time']}; {machine}; {load}", ""]


def _align(row: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    cells = zip(row, widths, left, strict=True)
    return " ".join(c.ljust(w) if is_left else c.rjust(w) for c, w, is_left in cells).rstrip()


def _format_count(count: int) -> str:
    """A count with at most three digits, such as 16.8M."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return str(count)


def _format_ms(seconds: float) -> str:
    return _decimals(seconds * 1000, 3) if seconds < 0.1 else f"{seconds * 1000:.1f}"


def _format_spread(series: Series) -> str:
    return "/".join(f"{(value / series.median - 1) * 100:+.0f}" for value in series.spread)


def _format_speed(run: Run, series: Series, contender: str) -> str:
    peer = run.peer(series, contender)
    doubt = "?" if peer and peer is not series and run.starves(peer) else ""
    return _decimals(run.speed_over(series, contender), 2) + doubt


def _decimals(value: float | None, digits: int) -> str:
    """The number of decimals: one fewer for each power of ten."""
    if value is None:
        return _NONE
    return f"{value:.{max(0, digits - (value >= 10) - (value >= 100))}f}"
