"""Pieces of kernel work in flight, and the callback of each piece."""

from __future__ import annotations

from reducer.core.surface.events import Output, TableEffect, WorkFailed


class Sequel:
    """The callback of a piece of work."""

    def done(self, event: TableEffect, now: float, out: list[Output]) -> None:
        raise NotImplementedError

    def failed(self, error: Exception, now: float, out: list[Output]) -> None:
        """The work failed and has changed nothing. Takes back the resources of the work."""
        raise NotImplementedError


class Works:
    """Numbers pieces of work. The shell answers each once, before any other event."""

    def __init__(self) -> None:
        self._sequels: dict[int, Sequel] = {}
        self._last = 0

    def begin(self, sequel: Sequel) -> int:
        """The number of the next piece of work."""
        self._last += 1
        self._sequels[self._last] = sequel
        return self._last

    def done(self, event: TableEffect, now: float) -> list[Output]:
        out: list[Output] = []
        sequel = self._sequels.pop(event.work)
        if isinstance(event, WorkFailed):
            sequel.failed(event.error, now, out)
        else:
            sequel.done(event, now, out)
        return out
