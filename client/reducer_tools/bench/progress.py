"""A progress bar for each size. Without a terminal or without rich nothing is drawn."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, TextIO

from reducer.units import format_size
from reducer_tools.bench.events import Turn

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress:
    """Draws one bar at a time; ``clear`` removes the bar before a line is printed."""

    def __init__(self, stream: TextIO) -> None:
        self.draws = stream.isatty() and importlib.util.find_spec("rich") is not None
        self._stream = stream
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._bytes = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        self.clear()

    def show(self, turn: Turn) -> None:
        if not self.draws:
            return
        if turn.bytes != self._bytes:
            self.clear()
        if self._bar is None or self._task is None:
            self._bar = self._open()
            self._task = self._bar.add_task(short_size(turn.bytes), total=turn.total)
            self._bytes = turn.bytes
        self._bar.update(self._task, completed=turn.done)
        self._bar.refresh()

    def clear(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self) -> Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        # No thread redraws the bar, because it would take time from the measured ranks. Rich must
        # not redirect stdout to this console.
        bar = Bar(
            *columns,
            console=Console(file=self._stream),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bar.start()
        return bar


def short_size(size: int) -> str:
    """A size in the notation of nccl-tests.

    >>> short_size(64 << 20), short_size(1000)
    ('64M', '1000')
    """
    return format_size(size).removesuffix("iB")
