"""When the idle keys of a run are forgotten: a part of them at a time."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reducer.core.keytable import KeyTable


class IdleKeys:
    """The tables of a run that have idle keys, each once, and since when the first of these waits.

    One that has waited before comes behind the others: it may have to wait twice as long.
    """

    def __init__(self) -> None:
        self._since: OrderedDict[KeyTable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._since)

    def wait(self, table: KeyTable, since: float) -> None:
        self._since[table] = since

    def leave(self, table: KeyTable) -> None:
        """The table is not to be used any more."""
        self._since.pop(table, None)

    def forget(self, before: float, most: int) -> int:
        """Forget keys idle since `before`; the bytes of the records looked at, about `most`
        at most."""
        looked = 0
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
