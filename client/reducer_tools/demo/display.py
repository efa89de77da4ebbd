"""Shows what the demo does: a line with its time for each thing it starts, and the steps."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from reducer.units import format_count
from reducer_tools.demo.cores import CpuTime, cpu_time
from reducer_tools.demo.messages import BLOCK, RUNS, Ready, Step

_WIDTH = 50  # of the lines before their times


class Display:
    """Prints lines. On a terminal, a spinner shows what has not ended yet."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    @contextmanager
    def task(self, text: str) -> Generator[None]:
        """Show what the block does, and its time at the end."""
        began = time.monotonic()
        with self.console.status(text):
            yield
        self.say(f"  {text:<{_WIDTH}}{time.monotonic() - began:6.1f} s")


class Audience:
    """Shows the messages of the workers: their start, then bars with the steps of both runs.

    Without a terminal each turn is a line. ``busy`` is the cores' busy share of the training.
    """

    def __init__(self, display: Display, workers: int, steps: int) -> None:
        self._display = display
        self._missing = workers
        self._steps = steps
        self.busy = 0.0
        self._began: CpuTime | None = None
        self._stack = ExitStack()
        self._starting = display.task(f"{format_count(workers, 'worker')} with PyTorch")
        self._bars = _bars(display.console)
        self._tasks = {run: self._bars.add_task(run, total=steps, last="") for run in RUNS}

    def __enter__(self) -> Audience:
        self._stack.enter_context(self._starting)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, at)
        if self._began is not None:
            self.busy = cpu_time().busy_since(self._began)

    def __call__(self, rank: int, message: Ready | Step) -> None:
        if isinstance(message, Step):
            self._show(message)
            return
        self._missing -= 1
        if not self._missing:
            self._stack.close()
            self._began = cpu_time()
            if self._display.console.is_terminal:
                self._stack.enter_context(self._bars)

    def _show(self, step: Step) -> None:
        last = f"{step.seconds * 1e3:4.0f} ms a step, loss {step.loss:.2f}"
        if self._display.console.is_terminal:
            self._bars.update(self._tasks[step.run], completed=step.number, last=last)
            self._bars.refresh()
        elif step.number % BLOCK == 0 or step.number == self._steps:
            self._display.say(f"  {step.run:<8} step {step.number:>3}/{self._steps}  {last}")


def _bars(console: Console) -> Progress:
    columns = (
        TextColumn("  {task.description:<8}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:>3.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[last]}"),
    )
    # No thread redraws the bars, because it would take time from the workers.
    return Progress(*columns, console=console, auto_refresh=False)
