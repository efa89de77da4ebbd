"""``reducer timeline``: merges the trace files of all ranks and lanes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command("timeline")
@click.argument("sources", nargs=-1, required=True, metavar="FOLDER_OR_FILE...")
@click.option(
    "--out", default="timeline.json", show_default=True, metavar="FILE", help="File to write."
)
def command(sources: tuple[str, ...], out: str) -> None:
    """Merge the timelines of workers and reducers into one file.

    Open the file at ui.perfetto.dev.

    Workers and reducers write timelines if REDUCER_TIMELINE names a folder. Times of one machine
    agree exactly. Times of several machines agree only as closely as the machines' clocks.
    """
    found = [path for source in sources for path in _files(Path(source))]
    files = [path for path in found if path.resolve() != Path(out).resolve()]
    if not files:
        raise click.ClickException(f"no .json file in {', '.join(sources)}")
    merged: list[dict[str, Any]] = []
    for number, events in enumerate(sorted(map(_read, sorted(files)), key=_sort_index), 1):
        # Processes of different machines or containers may have equal process ids.
        merged += [{**event, "pid": number} for event in events]
    try:
        text = json.dumps({"traceEvents": merged}, separators=(",", ":"))
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror}") from None
    rounds = sum(event.get("ph") == "X" and "args" in event for event in merged)
    click.echo(f"{out}: {len(files)} files, {rounds:,} rounds; open it at https://ui.perfetto.dev")


def _files(source: Path) -> list[Path]:
    return sorted(source.glob("*.json")) if source.is_dir() else [source]


def _sort_index(events: list[dict[str, Any]]) -> int:
    """The sort index in the file.

    Viewers sort by process id instead, so merged processes are numbered by this index.
    """
    indices = (e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index")
    return next(indices, 0)


def _read(path: Path) -> list[dict[str, Any]]:
    """The events of a file, which has one event per line.

    The last line may be incomplete, if the writer was killed. splitlines() would also split at
    characters such as U+2028, which keys may contain.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    if lines[:1] != ["["]:
        raise click.ClickException(f"{path}: expected a timeline of a worker or a reducer")
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines[1:], 2):
        if line in ("", "]"):
            continue
        try:
            events.append(json.loads(line.removesuffix(",")))
        except ValueError as error:
            if number < len(lines):
                raise click.ClickException(f"{path}, line {number}: {error}") from None
    return events
