"""Progress on stderr: a bar if stderr is a terminal, else nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, turns: int) -> Generator[Callable[[str, int], None]]:
    """Yields a function to call with (contender, turn) after each turn; turn 0 is the warm-up."""
    if not sys.stderr.isatty():
        yield lambda contender, turn: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} turns"),
        TextColumn("{task.fields[last]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=turns, last="starting")

        def advance(contender: str, turn: int) -> None:
            bars.update(task, advance=1, last=f"{contender}{'' if turn else ' (warm-up)'}")

        yield advance
