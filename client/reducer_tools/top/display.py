"""The screen of `reducer top`: the reducers, the late ranks of each run, the tables of the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from reducer.status.amounts import amount, duration
from reducer.status.late_ranks import RANKS_SHOWN, is_late
from reducer.status.summary import RankStatus, ReducerStatus, RunStatus, Summary
from reducer.status.table import NO_RUN, ended_lines, now_text, run_text, why_down
from reducer.status.tables import TableStatus
from reducer.status.tables_text import LEFT, by_run, cells, head, more_text, title
from reducer_tools.top.rates import Change

# A rank is late now if the others waited for it for at least this share of the time since the last
# look.
_LEAST_NOW = 0.05
_BAR = 12
# From this number of columns on, a reducer has a row with everything.
_WIDE = 110
_SPEEDS = ("IN/s", "OUT/s", "ROUNDS/s")
_ALL = ("REDUCER", *_SPEEDS, "OPEN", "JOBS", "WORKERS", "MEMORY", "STATE")
_NARROW = ("REDUCER", *_SPEEDS, "WORKERS", "MEMORY", "STATE")


def picture(
    asked: Sequence[str], summary: Summary, errors: Mapping[str, str], change: Change, width: int
) -> RenderableType:
    """The picture to draw in so many columns. Every address in `asked` has a row, with its error if
    there is one.
    """
    parts: list[RenderableType] = [_reducers(asked, summary, errors, change, width >= _WIDE)]
    for run in summary.runs:
        parts += [Text(), *_run(run, change.waits.get((run.job, run.run_id), {}))]
    for (job, run_id), tables in by_run(summary.tables).items():
        parts += [Text(), Text(title(job, run_id, tables), "bold"), _tables(tables, change)]
    if summary.more_tables:
        parts.append(Text(more_text(summary.more_tables)))
    if summary.reducers and not summary.runs and not summary.tables:
        parts += [Text(), Text(NO_RUN)]
    if summary.ended:
        parts += [Text(), *map(Text, ended_lines(summary.ended))]
    return Group(*parts)


def _table(*columns: str, left: int) -> Table:
    """A table whose first and last columns go on in the next line on a narrow terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        is_last = index == len(columns) - 1
        is_left = index < left or is_last
        gives_way = is_last or (index == 0 and is_left)
        table.add_column(
            name, justify="left" if is_left else "right", no_wrap=not gives_way, overflow="fold"
        )
    return table


def _tables(tables: Sequence[TableStatus], change: Change) -> Table:
    shown = Table(box=None, padding=(0, 0, 0, 2), pad_edge=True, header_style="bold")
    for index, name in enumerate(names := head("UPDATES/s")):
        is_last = index == len(names) - 1  # the only one that gives way on a narrow terminal
        is_left = index in LEFT
        shown.add_column(name, justify="left" if is_left else "right", no_wrap=not is_last)
    for table in tables:
        rate = change.updates.get(table.key)
        row = cells(table, "-" if rate is None else f"{rate:,.1f}")
        style = "bold red" if table.late else ""
        shown.add_row(*map(Text, row[:-1]), Text(row[-1], style))
    return shown


def _reducers(
    asked: Sequence[str],
    summary: Summary,
    errors: Mapping[str, str],
    change: Change,
    wide: bool,
) -> Table:
    columns = _ALL if wide else _NARROW
    table = _table(*columns, left=1)
    found = {reducer.address: reducer for reducer in summary.reducers}
    for address in asked:
        if address in found:
            cells = _cells(found[address], change, wide)
        else:
            why = why_down(address, errors[address])
            cells = dict.fromkeys(_ALL, Text("-")) | {"STATE": Text(f"down: {why}", "bold red")}
        table.add_row(*({**cells, "REDUCER": Text(address)}[name] for name in columns))
    return table


def _cells(reducer: ReducerStatus, change: Change, wide: bool) -> dict[str, Text]:
    rates = change.rates.get(reducer.address)
    speeds = ["-"] * 3
    if rates is not None:
        speeds = [amount(rates.received), amount(rates.sent), f"{rates.rounds:,.1f}"]
    used = reducer.memory_reserved / reducer.memory if reducer.memory else 0.0
    sizes = f"{amount(reducer.memory_reserved)} of {amount(reducer.memory)} "
    return {
        **{name: Text(speed) for name, speed in zip(_SPEEDS, speeds, strict=True)},
        "OPEN": Text(str(reducer.open_rounds)),
        "JOBS": Text(str(reducer.jobs)),
        "WORKERS": Text(f"{reducer.workers}/{reducer.places}"),
        "MEMORY": Text(f"{sizes * wide}{used:4.0%}"),
        "STATE": Text(reducer.state, "green" if reducer.ready else "yellow"),
    }


def _run(run: RunStatus, waits: Mapping[int, float]) -> list[RenderableType]:
    # repr, because a name may contain control sequences of a terminal.
    title = Text.assemble(("job ", ""), (repr(run.title), "bold"), (run_text(run), ""))
    if run.joined is not None:
        return [title]
    late = [rank for rank in run.ranks if is_late(rank) or waits.get(rank.rank, 0.0) >= _LEAST_NOW]
    if not late:
        return [title, Text("  nobody is late")]
    late.sort(key=lambda rank: waits.get(rank.rank, 0.0), reverse=True)
    table = _table("  RANK", "LATE NOW", "", "WAITED FOR", "SHARE", "NOW", left=0)
    for rank in late[:RANKS_SHOWN]:
        table.add_row(*_rank(rank, waits.get(rank.rank, 0.0)))
    more = [Text(f"  and {len(late) - RANKS_SHOWN} more")] if len(late) > RANKS_SHOWN else []
    return [title, table, *more]


def _rank(rank: RankStatus, now: float) -> list[Text]:
    style = "bold red" if now >= _LEAST_NOW else ""
    full = round(_BAR * now)
    return [
        Text(str(rank.rank), style),
        Text(f"{now:.0%}", style),
        Text("█" * full + "·" * (_BAR - full), style),
        Text(duration(rank.waited)),
        Text(f"{rank.share:.0%}"),
        Text(now_text(rank)),
    ]
