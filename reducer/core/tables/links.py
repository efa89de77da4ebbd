"""Finds the link to which an attempt to connect, or a session, belongs."""

from __future__ import annotations

from reducer.core.surface.events import Output
from reducer.wire import messages
from reducer.wire.table_messages import Notice


class LinkEvents:
    """The end of a connection that this lane has opened."""

    def dialed(self, session: int, now: float, out: list[Output]) -> None:
        raise NotImplementedError

    def failed(self, reason: str, now: float, out: list[Output]) -> None:
        raise NotImplementedError

    def disconnected(self, reason: str, now: float, out: list[Output]) -> None:
        raise NotImplementedError

    def notice(self, notice: Notice, now: float, out: list[Output]) -> None:
        raise NotImplementedError

    def logged(self, position: int, now: float, out: list[Output]) -> None:
        raise NotImplementedError

    def heard(self, now: float) -> None:
        raise NotImplementedError

    def error(self, error: messages.Error, now: float, out: list[Output]) -> None:
        raise NotImplementedError


class Links:
    """The links of a lane by the number of the attempt, and by session."""

    def __init__(self) -> None:
        self._last = 0
        self._dialing: dict[int, LinkEvents] = {}
        self._linked: dict[int, LinkEvents] = {}

    def dial(self, link: LinkEvents) -> int:
        self._last += 1
        self._dialing[self._last] = link
        return self._last

    def dialed(self, number: int, session: int) -> LinkEvents | None:
        link = self._dialing.pop(number, None)
        if link is not None:
            self._linked[session] = link
        return link

    def failed(self, number: int) -> LinkEvents | None:
        return self._dialing.pop(number, None)

    def of(self, session: int) -> LinkEvents | None:
        return self._linked.get(session)

    def ended(self, session: int) -> LinkEvents | None:
        return self._linked.pop(session, None)

    def forget(self, number: int, session: int) -> None:
        self._dialing.pop(number, None)
        self._linked.pop(session, None)
