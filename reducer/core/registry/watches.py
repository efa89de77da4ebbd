"""Calls that wait until a record changes, or until their time is over.

A record that changes often wakes its watchers at most twice in REST_SECONDS. Twice, because one
change often answers another: a process registers, and the others take it in. A crowd of watchers is
woken in parts, so that other jobs have their turns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, NamedTuple

from reducer.registry.records import Key

REST_SECONDS: Final = 0.05
_LONG_AGO: Final = (-REST_SECONDS, -REST_SECONDS)
# Watches that end before other jobs have their turns: 10 us each.
MOST_AT_ONCE: Final = 256


class Watch(NamedTuple):
    """Call `number` of a session, which knows the record at revision `known`."""

    session: int
    number: int
    key: Key
    known: int
    until: float


class Watches:
    def __init__(self) -> None:
        self._of_key: dict[Key, dict[tuple[int, int], Watch]] = {}
        self._of_session: dict[int, dict[int, Key]] = {}
        self._ends: list[tuple[float, int, int]] = []
        self._changed: dict[Key, None] = {}  # records whose watchers are to be woken
        self._woken_at: dict[Key, tuple[float, float]] = {}  # the last two times

    def count(self, session: int) -> int:
        return len(self._of_session.get(session, ()))

    def add(self, watch: Watch) -> None:
        self._of_session.setdefault(watch.session, {})[watch.number] = watch.key
        self._of_key.setdefault(watch.key, {})[watch.session, watch.number] = watch
        heapq.heappush(self._ends, (watch.until, watch.session, watch.number))

    def forget(self, session: int) -> None:
        """The session has ended."""
        for number in list(self._of_session.get(session, ())):
            self._remove(session, number)

    def note_change(self, key: Key) -> None:
        if key in self._of_key:
            self._changed[key] = None

    def take_due(self, now: float, revision_of: Callable[[Key], int]) -> list[Watch]:
        """Remove the watches that are to be answered because their records have changed."""
        due: list[Watch] = []
        for key in list(self._changed):
            if len(due) >= MOST_AT_ONCE:
                break
            earlier, last = self._woken_at.get(key, _LONG_AGO)
            if now - earlier < REST_SECONDS:
                continue
            revision = revision_of(key)
            behind = [w for w in self._of_key.get(key, {}).values() if w.known != revision]
            room = MOST_AT_ONCE - len(due)
            due += behind[:room]
            if len(behind) <= room:
                del self._changed[key]
                if behind:
                    self._woken_at[key] = (last, now)
        for watch in due:
            self._remove(watch.session, watch.number)
        return due

    def take_over(self, now: float) -> list[Watch]:
        """Remove the watches whose time is over."""
        over: list[Watch] = []
        while self._ends and self._ends[0][0] <= now and len(over) < MOST_AT_ONCE:
            until, session, number = heapq.heappop(self._ends)
            key = self._of_session.get(session, {}).get(number)
            if key is not None and self._of_key[key][session, number].until == until:
                over.append(self._of_key[key][session, number])
                self._remove(session, number)
        rested = [k for k, (_, last) in self._woken_at.items() if now - last >= REST_SECONDS]
        for key in rested:
            del self._woken_at[key]
        return over

    def _remove(self, session: int, number: int) -> None:
        numbers = self._of_session[session]
        key = numbers.pop(number)
        if not numbers:
            del self._of_session[session]
        watches = self._of_key[key]
        del watches[session, number]
        if not watches:
            del self._of_key[key]
            self._changed.pop(key, None)
