"""The reducers of a run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from reducer_client.hosted.hosted_reducer import HostedReducer

# Ranks mostly end at the same time. A reducer that ends before them looks to them like a lost one.
_LINGER_SECONDS = 0.5


@dataclass(frozen=True)
class Reducers:
    """The reducers of a run.

    Attributes:
        addresses: dedicated reducers first.
        weights: their shares.
        hosted: for each hosted reducer the ranks on its machine. They are the last addresses.
        key: the key of the hosted reducers; b"" without any.
        own: the hosted reducer that this rank has started.
    """

    addresses: tuple[str, ...]
    weights: tuple[int, ...] = ()
    hosted: tuple[tuple[int, ...], ...] = ()
    key: bytes = field(default=b"", repr=False)
    own: HostedReducer | None = field(default=None, repr=False)

    @contextmanager
    def stopped_on_error(self) -> Generator[None]:
        """End the hosted reducer that this rank has started if the block raises."""
        try:
            yield
        except BaseException:
            if self.own is not None:
                self.own.stop()
            raise

    def stop(self) -> None:
        """End the hosted reducer that this rank has started, once the other ranks have had time to
        leave it.
        """
        if self.own is not None:
            self.own.stop(_LINGER_SECONDS)

    def of_others(self) -> Reducers:
        """The same reducers for another group, which does not end them."""
        return replace(self, own=None, hosted=((),) * len(self.hosted))
