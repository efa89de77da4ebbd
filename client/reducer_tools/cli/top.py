"""``reducer top``: shows running reducers as a table that is redrawn every second."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from reducer.cli.addresses import addresses_option, seconds_option, status_addresses
from reducer.status.ask import ask_all
from reducer.status.summary import Summary, summarize
from reducer_tools.cli.extras import need
from reducer_tools.top.rates import Change, change

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPE_WIDTH = 160  # columns of a picture that is not written to a terminal


@click.command("top")
@addresses_option
@seconds_option("--interval", 1.0, "Time between two requests to the reducers.")
@seconds_option("--timeout", 2.0)
@click.option(
    "--once", is_flag=True, help="Ask the reducers twice, print the changes in between, and end."
)
def command(addresses: str | None, interval: float, timeout: float, once: bool) -> None:
    """Watch the throughput, jobs and late ranks of reducers.

    The key q ends the command. The command asks the same reducers as `reducer status`. LATE NOW is
    the part of the time, since the last request, during which at least half of the ranks were
    waiting for this rank. WAITED FOR and SHARE are for the whole run. With --once the exit status
    is 1 if a reducer does not answer.
    """
    need("`reducer top`", "tools", rich="rich")
    from rich.console import Console

    console = Console(highlight=False)
    watch = _Watch(status_addresses(addresses), timeout)
    if not once and not console.is_terminal:
        raise click.UsageError("expected stdout to be a terminal; --once prints one table")
    if once:
        _print_once(watch, interval, console)
    else:
        _run(watch, interval, console)


class _Watch:
    """Asks the same reducers repeatedly and keeps the previous answer for rates."""

    def __init__(self, addresses: list[str], timeout: float) -> None:
        self._addresses = addresses
        self._timeout = timeout
        self._before = Summary([], [])
        self.errors: dict[str, str] = {}

    def look(self, width: int) -> RenderableType:
        """Ask the reducers and return the picture to show in so many columns."""
        from reducer_tools.top.display import picture

        answers, self.errors = ask_all(self._addresses, self._timeout)
        now = summarize(answers)
        happened: Change = change(self._before, now)
        self._before = now
        return picture(self._addresses, now, self.errors, happened, width)


def _print_once(watch: _Watch, interval: float, console: Console) -> None:
    watch.look(0)
    time.sleep(interval)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(watch.look(console.width))
    for text in watch.errors.values():
        click.echo(f"Error: {text}", err=True)
    sys.exit(1 if watch.errors else 0)


def _run(watch: _Watch, interval: float, console: Console) -> None:
    from rich.live import Live

    try:
        with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
            pressed = ""
            while pressed not in ("q", "Q"):
                began = time.monotonic()
                live.update(watch.look(console.width), refresh=True)
                pressed = key(max(0.1, interval - (time.monotonic() - began)))
    except KeyboardInterrupt:
        pass


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def _keys() -> Generator[Callable[[float], str]]:
    """A function that waits for a key for some seconds and returns it, or "".

    On exit the terminal gets its settings back.
    """
    if not sys.stdin.isatty():
        yield _no_key
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 1).decode("latin-1") if ready else ""

    tty.setcbreak(terminal)
    try:
        yield key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
