"""Shows the demo's progress: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from reducer_tools.demo.messages import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Display(Protocol):
    """Shows the progress of the runs."""

    def show(self, progress: Progress) -> None:
        """Called after every epoch of every run."""


@contextmanager
def open_display(stream: TextIO, runs: Sequence[str], epochs: int) -> Generator[Display]:
    """Draw bars if the stream is a terminal, else print lines."""
    if not stream.isatty():
        yield _Lines(stream, epochs)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TextColumn("epoch {task.completed:>2.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(file=stream)) as bars:
        yield _Bars(bars, runs, epochs)


class _Lines:
    def __init__(self, stream: TextIO, epochs: int) -> None:
        self._stream = stream
        self._epochs = epochs

    def show(self, progress: Progress) -> None:
        epoch = f"epoch {progress.epoch:>2}/{self._epochs}"
        self._stream.write(f"{progress.run:<9} {epoch}  loss {progress.loss:.4f}\n")
        self._stream.flush()


class _Bars:
    def __init__(self, bars: RichProgress, runs: Sequence[str], epochs: int) -> None:
        self._bars = bars
        self._tasks = {run: bars.add_task(run, total=epochs, start=False, loss="") for run in runs}

    def show(self, progress: Progress) -> None:
        task = self._tasks[progress.run]
        if not self._bars.tasks[task].started:
            self._bars.start_task(task)
        self._bars.update(task, completed=progress.epoch, loss=f"loss {progress.loss:.4f}")
