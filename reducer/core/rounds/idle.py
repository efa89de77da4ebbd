"""What a run forgets a part at a time: idle keys, and the tables of streams that are over."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reducer.core.rounds.keytable import KeyTable


class IdleKeys:
    """The tables of a run that have idle keys, each once, and since when the first of these waits.

    One that has waited before comes behind the others: it may have to wait twice as long. Tables
    that are over come first; their records take room until they are taken apart.
    """

    def __init__(self) -> None:
        self._since: OrderedDict[KeyTable, float] = OrderedDict()
        self._over: deque[KeyTable] = deque()

    def __len__(self) -> int:
        return len(self._since)

    @property
    def is_clean(self) -> bool:
        """Whether no table is over."""
        return not self._over

    def wait(self, table: KeyTable, since: float) -> None:
        self._since[table] = since

    def end(self, table: KeyTable) -> None:
        """The table is not to be used any more."""
        self._since.pop(table, None)
        self._over.append(table)

    def give_up(self) -> None:
        """Forget the tables that are over at once, without a look at their records."""
        self._over.clear()

    def take_apart(self, most: int) -> int:
        """Forget keys of tables that are over; the bytes of their records, about `most` at most."""
        took = 0
        while self._over and took < most:
            table = self._over[0]
            took += table.take_apart(most - took)
            if not len(table):
                self._over.popleft()
        return took

    def forget(self, before: float, most: int) -> int:
        """Forget keys that are over, or idle since `before`; the bytes of the records looked at,
        about `most` at most."""
        looked = self.take_apart(most)
        while self._since and looked < most:
            table, since = next(iter(self._since.items()))
            if since >= before:
                break
            looked += table.forget_idle(before, most - looked)
            first = table.idle_since
            if first is None or first >= before:
                del self._since[table]
                if first is not None:
                    self._since[table] = first
        return looked
