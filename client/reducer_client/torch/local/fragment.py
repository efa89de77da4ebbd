"""A fragment: the part of a model that is exchanged at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reducer_client.errors import NumericError
from reducer_client.torch.local.block import Block, Values
from reducer_client.torch.local.host import Host
from reducer_client.torch.local.transfer import Finished, Link, Transfer


class Fragment:
    """Blocks that are sent and merged together. Each has an outer state of its own.

    Args:
        key: the key of its rounds.

    Attributes:
        sent: the step after which it was sent last, or None.
        due: the step after which it is to be merged; None if nothing is in flight.
    """

    def __init__(self, key: str, blocks: Sequence[Block]) -> None:
        self.blocks = list(blocks)
        self.sent: int | None = None
        self.due: int | None = None
        self._keys = [f"{key}.{index}" if index else key for index in range(len(blocks))]
        self._transfers: list[Transfer | Finished] = []

    def send(self, link: Link | None, step: int, delay: int) -> None:
        """Begin the mean of all ranks' pseudo-gradients. Without a link another process does so."""
        self.sent, self.due = step, step + delay
        if link is not None:
            self._transfers = [
                Transfer(link, key, block.delta(), block.narrows)
                for key, block in zip(self._keys, self.blocks, strict=True)
            ]

    def merge(self, host: Host | None, keep_local: float) -> None:
        """Wait for the means, make the outer step, and give the model the outer values.

        Raises NumericError and other ReducerErrors. Nothing has changed then, and after a
        NumericError nothing is in flight any more.
        """
        try:
            means = [transfer.wait() for transfer in self._transfers]
        except NumericError:
            self._transfers, self.due = [], None
            raise
        for block, mean in zip(self.blocks, means, strict=False):  # no means without a link
            block.apply(mean)
        self._transfers, self.due = [], None
        self.show(host, keep_local)

    def show(self, host: Host | None, keep_local: float = 0.0) -> None:
        """Give the model the outer values, on all ranks of the host."""
        for block in self.blocks:
            if host is not None:
                host.share(block.outer)
            block.merge(keep_local)

    def drop(self) -> None:
        """Wait for what is in flight, and forget it. Raises ReducerErrors."""
        for transfer in self._transfers:
            transfer.wait()
        self._transfers, self.due = [], None

    def outer(self) -> Values:
        return {n: v for b in self.blocks for n, v in b.run.named(b.outer).items()}

    def velocity(self) -> Values:
        return {
            n: v
            for b in self.blocks
            if b.velocity is not None
            for n, v in b.run.named(b.velocity).items()
        }

    def mean(self) -> Values:
        """The means in flight, by name. Waits for them, and raises ReducerErrors."""
        means = zip(self.blocks, self._transfers, strict=False)
        return {n: v for b, transfer in means for n, v in b.run.named(transfer.wait()).items()}

    def load(self, state: Mapping[str, Any], sent: int | None) -> None:
        """Take over the values of `outer` and `velocity`. Raises ValueError for another model's."""
        self.sent = sent
        for block in self.blocks:
            block.outer = block.run.flat(state["outer"], "outer values")
            if block.velocity is not None:
                block.velocity = block.run.flat(state["velocity"], "velocity")

    def resume(self, mean: Mapping[str, Any], due: int, has_link: bool) -> None:
        """Take over the values of `mean`, which are merged after the step ``due``."""
        self.due = due
        if has_link:
            self._transfers = [Finished(b.run.flat(mean, "mean in flight")) for b in self.blocks]
