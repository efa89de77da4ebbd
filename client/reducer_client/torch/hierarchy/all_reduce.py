"""One all-reduce through a hierarchy: its handle, its deadline and its pieces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from reducer.wire.codes import DType
from reducer_client.arrays import Array
from reducer_client.config import CHUNK_ALIGNMENT
from reducer_client.dtypes import Op, WireDtype
from reducer_client.errors import ReducerError, RoundTimeoutError
from reducer_client.torch.hierarchy.step_thread import StepThread
from reducer_client.work import Timeout, as_seconds

# Bytes of a rank's shard of one piece. Small shards shorten the exchange of the first and the last
# piece, which no network transfer overlaps. Large shards make rounds of the reducers efficient.
SHARD_BYTES = 4 << 20

# Seconds for the ranks of a failed hierarchy to agree on the cause: three network steps, each with
# its own timeout.
PATIENCE = 10.0

# The shards of a piece as bytes, indexed by local rank.
Piece = list[torch.Tensor]


@dataclass(eq=False)
class AllReduce:
    """A call and its handle. Any thread may wait for it, any number of times."""

    key: str
    op: Op
    wire: DType
    result: Array
    _: KW_ONLY
    wire_dtype: WireDtype | None
    dtype: str | None
    limit: InitVar[float]
    on_done: Callable[[Any], None] | None
    residual: Array | None = None
    error: ReducerError | None = None

    def __post_init__(self, limit: float) -> None:
        self._deadline = time.monotonic() + limit
        self._finished = threading.Event()

    def __repr__(self) -> str:
        return f"<AllReduce key={self.key!r} done={self.done}>"

    @property
    def done(self) -> bool:
        """Whether the call has succeeded or failed, so that ``wait`` returns or raises at once."""
        return self._finished.is_set()

    def wait(self, timeout: Timeout | None = None) -> Array:
        """Wait for the result and return it.

        Args:
            timeout: seconds or a timedelta. None waits until the call ends, which is at most
                PATIENCE seconds after the timeout given to ``all_reduce``.

        Raises:
            ReducerError: the call failed. All ranks of the host raise the same text.
            RoundTimeoutError: the call did not finish within ``timeout``. The call continues.
        """
        limit = max(0.0, self.left()) + PATIENCE if timeout is None else as_seconds(timeout)
        if not self._finished.wait(limit):
            raise RoundTimeoutError(
                f"key {self.key!r}: not finished after {limit:g} s",
                key=self.key,
                reason="timeout",
            )
        if self.error is not None:
            raise self.error
        return self.result

    def exception(self) -> ReducerError | None:
        """The error that ``wait`` raises; None if the call succeeded or is not done yet."""
        return self.error if self.done else None

    def left(self) -> float:
        """The seconds until the deadline."""
        return self._deadline - time.monotonic()

    def describe(self) -> bytes:
        """A text that must be equal on all ranks of a host."""
        text = f"{self.op} of {self.wire.name.lower()} x {self.result.size}"
        text += f" as {self.wire_dtype}" if self.wire_dtype else ""
        return f"{text}, key {self.key!r}".encode()

    def pieces(self, local_size: int) -> list[Piece]:
        """The result cut into pieces of `local_size` shards, as views.

        All shards but the last are multiples of CHUNK_ALIGNMENT. Shards at the end may be empty.
        """
        flat = torch.from_numpy(self.result.reshape(-1).view(np.uint8))
        pieces = []
        step = SHARD_BYTES * local_size
        for start in range(0, flat.numel(), step):
            piece = flat[start : start + step]
            shard = -(-piece.numel() // local_size)
            shard += -shard % CHUNK_ALIGNMENT
            pieces.append([piece[shard * r : shard * (r + 1)] for r in range(local_size)])
        return pieces

    def residual_of(self, shard: torch.Tensor) -> Array | None:
        """The residuals of the elements of a shard."""
        if self.residual is None:
            return None
        flat = self.residual.reshape(-1)
        start = shard.storage_offset() // flat.itemsize
        return flat[start : start + shard.numel() // flat.itemsize]

    def finish(self, callbacks: StepThread) -> None:
        """Mark the call done. ``callbacks`` runs the callback, so that it delays no other call."""
        self._finished.set()
        if self.on_done is None:
            return
        done = partial(self.on_done, self)
        try:
            callbacks.put(done)
        except Exception:  # out of memory
            done()
