"""The gloo group of one host's ranks, on the loopback interface."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from reducer_client.errors import PeerLostError, ReducerError, RoundTimeoutError
from reducer_client.torch.hierarchy.layout import Layout

# Size of the records that `share` exchanges.
RECORD_BYTES = 2048
_NEVER_SENT = 1
_AT_ONCE = timedelta(milliseconds=1)


class HostGroup:
    """Point-to-point transfers between the ranks of a host, straight into the receivers' arrays.

    One thread at a time may call it. All ranks of the host make the same calls in the same order,
    with parts of equal sizes. Any thread may call ``abort``. After a failure every further call
    fails on all ranks.
    """

    def __init__(self, store: Store, name: str, layout: Layout, timeout: float) -> None:
        self._layout = layout
        self._others = [r for r in range(layout.local_size) if r != layout.local_rank]
        gloo: Any = dist.ProcessGroupGloo  # torch's stubs lack most of it
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout)
        options._devices = [gloo.create_device(interface="lo")]
        prefix = f"{name}/host{layout.host}"
        self._group = gloo(
            PrefixStore(prefix, store), layout.local_rank, layout.local_size, options
        )

    def exchange(
        self, parts: Sequence[torch.Tensor], into: Sequence[torch.Tensor], left: Callable[[], float]
    ) -> None:
        """Send ``parts[r]`` to local rank r and receive that rank's part for us in ``into[r]``.

        Our own entries are ignored. ``left`` returns the remaining seconds. Raises
        RoundTimeoutError or PeerLostError, which name the rank.
        """
        works = []
        for other in self._others:
            if into[other].numel():
                works.append((other, self._group.recv([into[other]], other, 0)))
        for other in self._others:
            if parts[other].numel():
                works.append((other, self._group.send([parts[other]], other, 0)))
        for other, work in works:
            try:
                work.wait(timedelta(seconds=max(left(), 0.001)))
            except RuntimeError as error:
                raise self._explain(other, error) from None

    def share(self, record: bytes, left: Callable[[], float]) -> list[bytes]:
        """Exchange records of at most RECORD_BYTES; returns all records, indexed by local rank.

        Zero bytes at the end of a record are lost.
        """
        mine = torch.frombuffer(bytearray(record.ljust(RECORD_BYTES, b"\0")), dtype=torch.uint8)
        told = torch.empty(self._layout.local_size, RECORD_BYTES, dtype=torch.uint8, device="cpu")
        told[self._layout.local_rank] = mine
        self.exchange([mine] * self._layout.local_size, list(told), left)
        return [bytes(row.numpy()).rstrip(b"\0") for row in told]

    def abort(self) -> None:
        """Close all connections. Transfers in progress fail on this rank and on the other ranks."""
        for other in self._others:
            # Gloo's own abort leaves connections open. A wait that times out closes them.
            with contextlib.suppress(RuntimeError):
                into = torch.empty(1, dtype=torch.uint8, device="cpu")
                self._group.recv([into], other, _NEVER_SENT).wait(_AT_ONCE)

    def _explain(self, other: int, error: RuntimeError) -> ReducerError:
        rank = self._layout.neighbour(other)
        text = str(error).partition("] ")[2].partition(". This is")[0] or str(error)
        if "Timed out" in text:
            return RoundTimeoutError(
                f"rank {rank}, on this host, did not answer in time", rank=rank, reason="timeout"
            )
        return PeerLostError(
            f"rank {rank}, on this host, closed its connection ({text})",
            rank=rank,
            reason="neighbour",
        )
