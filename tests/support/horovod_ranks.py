"""Ranks of Horovod programs, with the environment that a launcher would set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import reducer_client.horovod as hvd


def launched(rank: int, world: int, addresses: Sequence[str], job: str, **more: str) -> None:
    """Set the variables of a launcher in this process, which belongs to one rank."""
    os.environ.update(
        HOROVOD_RANK=str(rank),
        HOROVOD_SIZE=str(world),
        REDUCER_ADDRS=",".join(addresses),
        REDUCER_JOB=job,
        **more,
    )


@contextmanager
def initialized(
    rank: int, world: int, addresses: Sequence[str], job: str, **more: str
) -> Iterator[None]:
    """Run the block between ``init`` and ``shutdown``, with further variables."""
    launched(rank, world, addresses, job, **more)
    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()
