"""A push, as its caller sees it, and the receipt with the outcome of the push."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from reducer_client.errors import ReducerError
from reducer_client.tables.shared import Shared, Timeout, as_seconds

if TYPE_CHECKING:
    from asyncio import Future

Outcome = Literal["applied", "dropped", "carried", "partial"]


@dataclass(frozen=True)
class Receipt:
    """The outcome of a push.

    Attributes:
        outcome: ``"applied"``; ``"dropped"``: too stale, or too late for its step; ``"carried"``:
            too late for its step, and this worker adds it to its next push; ``"partial"``: some
            shards applied their part and others dropped it as too stale (async with a bound).
        version: the least version of the table's shards after the update.
        staleness: the greatest number of updates that a shard had between the pull and the push.
        versions: the least and the greatest version of the shards after the update.
        weight: the number of gradients in the push: 1, and 1 more for each carried gradient.
    """

    outcome: Outcome
    version: int
    staleness: int
    versions: tuple[int, int]
    weight: int = 1


class Push:
    """One push on its way. Any thread may wait for it, any number of times.

    ``await push`` gives the receipt, too.

    Attributes:
        number: 1 for the first push of this worker to the table, 2 for the next, and so on.
    """

    def __init__(self, shared: Shared, table: str, number: int) -> None:
        self.number = number
        self._shared = shared
        self._table = table
        self._receipt: Receipt | None = None
        self._error: ReducerError | None = None
        self._callbacks: list[Callable[[Push], object]] = []

    def __repr__(self) -> str:
        state = self._error or self._receipt or "on its way"
        return f"<Push {self.number} to table {self._table!r}: {state}>"

    @property
    def done(self) -> bool:
        """Whether the push has ended, with or without an error: ``wait`` does not block then."""
        return self._receipt is not None or self._error is not None

    def wait(self, timeout: Timeout | None = None) -> Receipt:
        """Wait for the receipt.

        Args:
            timeout: seconds or a timedelta; None means the parameter server's ``timeout``.

        Raises:
            NumericError: the gradient has NaN, Inf or a magnitude of 2^63 or more. The shards with
                such values have not changed.
            RoundTimeoutError: no receipt came in time. The push goes on; ``wait`` may be called
                again.
            StateLostError: a reducer has lost the table. It is unknown whether the push was
                applied.
            ReducerError: another subclass, if the parameter server has ended.
        """
        self._shared.check_process()
        with self._shared.changed:
            self._shared.wait_until(lambda: self.done, as_seconds(timeout), self._describe)
        if self._error is not None:
            raise self._error
        assert self._receipt is not None
        return self._receipt

    def exception(self) -> ReducerError | None:
        """The error that ``wait`` raises; None if the push succeeded or is on its way."""
        return self._error

    def add_done_callback(self, callback: Callable[[Push], object]) -> None:
        """Call ``callback(push)`` once, when the push has ended.

        It runs on a thread of the parameter server, or at once if the push has ended already.
        """
        self._shared.check_process()
        self._shared.callbacks.begin()
        with self._shared.changed:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback(self)

    def __await__(self) -> Generator[Any, None, Receipt]:
        from asyncio import get_running_loop

        loop = get_running_loop()
        future: Future[Receipt] = loop.create_future()

        def tell(push: Push) -> None:
            loop.call_soon_threadsafe(push._finish, future)

        self.add_done_callback(tell)
        return future.__await__()

    def settle(self, result: Receipt | ReducerError) -> None:
        """The push has ended; the first end counts. The caller holds the lock."""
        if self.done:
            return
        if isinstance(result, Receipt):
            self._receipt = result
        else:
            self._error = result
        for callback in self._callbacks:
            self._shared.callbacks.run_later(partial(callback, self))
        self._callbacks.clear()
        self._shared.changed.notify_all()

    def _finish(self, future: Future[Receipt]) -> None:
        if future.done():  # cancelled
            return
        if self._error is not None:
            future.set_exception(self._error)
        elif self._receipt is not None:
            future.set_result(self._receipt)

    def _describe(self, limit: float) -> str:
        return (
            f"table {self._table!r}: push {self.number} has no receipt after {limit:g} s; it goes "
            "on, and may be waited for again"
        )
