"""Names for the rounds of calls, equal on all ranks whatever threads do.

A program makes its calls in the same order on all ranks, and takes some keys in turns. Callbacks
of futures call, too (PowerSGD sums twice in them), but when and on which thread they run is chance.
So each call has a scope, each callback of its future a branch of that, by the order in which they
are registered, and what a callback calls is named after its branch.

Scopes are named by the numbers of the program's calls, and their names come round: the engine
remembers every key for ever. The ranks count the rounds of a key each for itself, so a name is safe
where each rank makes the calls of its earlier use first. Each rank sees to that alone: a callback
that calls waits for the callbacks of the earlier use, and one that comes after those of the later
use is refused. What is left to the program: callbacks of calls that are so far apart are registered
in one order on all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from reducer_client.config import DEFAULT_STEP_TIMEOUT
from reducer_client.errors import ReducerError, RoundTimeoutError
from reducer_client.spread import KeysInTurn

# Scopes have so many names. Bounds the keys that engine and reducers know; a callback that is
# later than so many calls of its group makes others wait.
_NAMES = 4096


class Uses:
    """Open callbacks of this rank by name, and the last call of each name.

    Args:
        patience: seconds that a call waits for what the earlier use of its name has to run.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._changed = threading.Condition()
        self._open: dict[int, list[int]] = {}  # by name: the calls that have something to run
        self._latest: dict[int, int] = {}  # by name: the last call of which something called

    def begin(self, call: int) -> None:
        """Something that is going to run belongs to the scope of a call."""
        with self._changed:
            self._open.setdefault(call % _NAMES, []).append(call)

    def end(self, call: int) -> None:
        with self._changed:
            self._open[call % _NAMES].remove(call)
            self._changed.notify_all()

    def take_turn(self, call: int) -> None:
        """Return when no earlier call of the name has anything to run; raises ReducerError."""
        name = call % _NAMES
        with self._changed:
            if not self._changed.wait_for(lambda: not self._before(call), self._patience):
                raise RoundTimeoutError(
                    f"a callback of call {call} of the group: the one of call "
                    f"{self._before(call)[0]} has not ended after {self._patience:g} s; expected "
                    f"it to end before {_NAMES:,} more calls have callbacks that call",
                    reason="timeout",
                )
            latest = self._latest.get(name, call)
            if latest > call:
                raise ReducerError(
                    f"a callback of call {call} of the group calls after one of call {latest}: "
                    f"expected it before, since their names are the same; register a callback "
                    f"that calls before {_NAMES:,} more calls",
                    reason="late",
                )
            self._latest[name] = call

    def _before(self, call: int) -> list[int]:
        return [earlier for earlier in self._open.get(call % _NAMES, ()) if earlier < call]


class Scope:
    """Calls that every rank makes in the same order.

    Args:
        uses, call: where to note what runs in it, and the call of the program that it belongs to;
            None for a scope in which nothing calls.
    """

    def __init__(self, name: str, uses: Uses | None = None, call: int = 0) -> None:
        self._name = name
        self._uses = uses
        self._call = call
        self._calls: dict[str, int] = {}

    @contextmanager
    def next_call(self, group: str) -> Generator[tuple[str, Scope]]:
        """Name the next call that a callback makes on a group: its key, and its own scope."""
        if self._uses is not None:
            self._uses.take_turn(self._call)
        number = self._calls.get(group, 0)
        self._calls[group] = number + 1
        key = f"{self._name}.{number}"
        try:
            yield key, Scope(key, self._uses, self._call)
        except Exception:
            self._calls[group] -= 1
            raise

    def branch(self, number: int) -> Scope:
        """The scope of the callback that was registered as that number of its future."""
        return Scope(f"{self._name}/{number}", self._uses, self._call)

    def begin(self) -> None:
        """Something is going to run in it; ``end`` says that it has."""
        if self._uses is not None:
            self._uses.begin(self._call)

    def end(self) -> None:
        if self._uses is not None:
            self._uses.end(self._call)


class MainScope:
    """The calls of the program on one group."""

    def __init__(self, group: str, reducers: int, patience: float = DEFAULT_STEP_TIMEOUT) -> None:
        self._group = group
        self._reducers = reducers
        self._uses = Uses(patience)
        self._lock = threading.Lock()
        self._number = 0
        self._keys: dict[str, KeysInTurn] = {}

    @contextmanager
    def next_call(self, place: str) -> Generator[tuple[str, Scope]]:
        """Name the call that is made inside the block: its key, and the scope of its callbacks.

        Calls of other places ("cpu", "cuda") are other rounds: they reach the engine by other ways.
        A call that raises is not counted: other ranks may not have been refused.
        """
        within: Scope | None = getattr(_entered, "scope", None)
        with self._next_call(place) if within is None else within.next_call(self._group) as call:
            yield call

    @contextmanager
    def _next_call(self, place: str) -> Generator[tuple[str, Scope]]:
        with self._lock:
            number = self._number
            self._number += 1
            keys = self._keys.setdefault(place, KeysInTurn(main_prefix(place), self._reducers))
        key = keys.take()
        try:
            yield key, Scope(f"{self._group}/{number % _NAMES}", self._uses, number)
        except Exception:
            keys.give_back()
            with self._lock:
                self._number -= 1
            raise


def main_prefix(place: str) -> str:
    """Begins the keys of the calls that the program makes itself, outside callbacks."""
    return f"calls/{place}"


_entered = threading.local()


@contextmanager
def entered(scope: Scope) -> Generator[None]:
    """Calls of this thread inside the block belong to the scope."""
    before = getattr(_entered, "scope", None)
    _entered.scope = scope
    try:
        yield
    finally:
        _entered.scope = before
