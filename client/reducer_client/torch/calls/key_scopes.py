"""Keys for the rounds of calls, equal on all ranks also for calls from callbacks.

A program makes its own calls in the same order on all ranks; their keys rotate. Callbacks of
futures make calls as well (PowerSGD reduces twice in them), but their order and their threads
differ between ranks. So each call has a scope. Each callback of the call's future has a branch of
this scope, numbered in the order of registration. The calls of a callback are named after its
branch.

A scope is named after the number of the program's call modulo `_NAMES`, because the engine keeps
the next round number of every key (16 bytes) until the run ends. Each rank counts the rounds of a
key on its own. So a name may be used again only if each rank makes the calls of the earlier use
first. Each rank ensures this by itself: a callback that makes a call waits for the callbacks of the
earlier use, and a call that comes after a later use is refused. The program must register the
callbacks of calls that are `_NAMES` apart in the same order on all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from reducer_client.config import DEFAULT_STEP_TIMEOUT
from reducer_client.default_keys import KeysInTurn
from reducer_client.errors import ReducerError, RoundTimeoutError

# Number of scope names. It limits the keys that the engine and the reducers remember. A callback
# that has not ended after this many calls of its group delays other callbacks.
_NAMES = 4096


class Uses:
    """Tracks the open callbacks of this rank, and the latest use of each name.

    Args:
        patience: seconds that a call waits for the callbacks of an earlier use of its name.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._changed = threading.Condition()
        self._open: dict[int, list[int]] = {}  # by name: calls with callbacks still to end
        self._latest: dict[int, int] = {}  # by name: last call whose callback made calls

    def begin(self, call: int) -> None:
        """Record a callback of ``call`` that will run. `end` removes it."""
        with self._changed:
            self._open.setdefault(call % _NAMES, []).append(call)

    def end(self, call: int) -> None:
        with self._changed:
            self._open[call % _NAMES].remove(call)
            self._changed.notify_all()

    def take_turn(self, call: int) -> None:
        """Wait until no earlier call of the same name has open callbacks.

        Raises RoundTimeoutError after ``patience`` seconds, and ReducerError if a later call has
        used the name.
        """
        name = call % _NAMES
        with self._changed:
            if not self._changed.wait_for(lambda: not self._before(call), self._patience):
                raise RoundTimeoutError(
                    f"a callback of call {call} of the group waited {self._patience:g} s for a "
                    f"callback of call {self._before(call)[0]} to end; expected callbacks to end "
                    f"within {_NAMES:,} calls of the group",
                    reason="timeout",
                )
            latest = self._latest.get(name, call)
            if latest > call:
                raise ReducerError(
                    f"a callback of call {call} of the group came too late: a callback of call "
                    f"{latest} has already used the same keys; register a callback, and let it "
                    f"run, within {_NAMES:,} calls of the group",
                    reason="late",
                )
            self._latest[name] = call

    def _before(self, call: int) -> list[int]:
        return [earlier for earlier in self._open.get(call % _NAMES, ()) if earlier < call]


class Scope:
    """Calls that every rank makes in the same order.

    Args:
        uses: records the callbacks of the scope; None for a scope in which no calls are made.
        call: number of the program's call that the scope belongs to.
    """

    def __init__(self, name: str, uses: Uses | None = None, call: int = 0) -> None:
        self.name = name
        self._uses = uses
        self._call = call
        self._calls: dict[str, int] = {}

    @contextmanager
    def next_call(self, group: str) -> Generator[tuple[str, Scope]]:
        """Yield the key and the scope of the next call that a callback makes on a group."""
        if self._uses is not None:
            self._uses.take_turn(self._call)
        number = self._calls.get(group, 0)
        self._calls[group] = number + 1
        key = f"{self.name}.{number}"
        try:
            yield key, Scope(key, self._uses, self._call)
        except Exception:
            self._calls[group] -= 1
            raise

    def branch(self, number: int) -> Scope:
        """The scope of the callback that was registered as number ``number`` on the future."""
        return Scope(f"{self.name}/{number}", self._uses, self._call)

    def begin(self) -> None:
        """Record that a callback will run in the scope. ``end`` removes it."""
        if self._uses is not None:
            self._uses.begin(self._call)

    def end(self) -> None:
        if self._uses is not None:
            self._uses.end(self._call)


class MainScope:
    """The scope of the calls that the program makes on one group."""

    def __init__(self, group: str, reducers: int, patience: float = DEFAULT_STEP_TIMEOUT) -> None:
        self._group = group
        self._reducers = reducers
        self._uses = Uses(patience)
        self._lock = threading.Lock()
        self._number = 0
        self._keys: dict[str, KeysInTurn] = {}

    @contextmanager
    def next_call(self, place: str) -> Generator[tuple[str, Scope]]:
        """Yield the key of the call that the block makes, and the scope of its callbacks.

        Calls of different places ("cpu", "cuda") have different keys, because they reach the engine
        on different paths. A call that raises is not counted, so that the next call of this rank
        still matches the open call of the other ranks.
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
    """The prefix of the keys of calls that the program makes outside of callbacks."""
    return f"calls/{place}"


_entered = threading.local()


@contextmanager
def entered(scope: Scope) -> Generator[None]:
    """Calls that this thread makes inside the block belong to the scope."""
    before = getattr(_entered, "scope", None)
    _entered.scope = scope
    try:
        yield
    finally:
        _entered.scope = before
