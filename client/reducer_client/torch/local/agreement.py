"""Checks that all ranks have the same settings and outer values."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from reducer_client.arrays import Array, flat_bytes
from reducer_client.errors import MismatchError, name_ranks
from reducer_client.group import Group, wait_or_end
from reducer_client.torch.local.block import Block

_HALF = 32  # bytes of a digest; a record has those of the settings and of the values


def differing(
    group: Group, key: str, settings: str, blocks: Sequence[Block], step: int
) -> list[int]:
    """The ranks whose outer state differs from rank 0's. All ranks call this.

    Raises MismatchError on all ranks if their settings or models differ.
    """
    names = ((e.name, e.local.shape, e.local.dtype) for b in blocks for e in b.run.tensors)
    record = sha256(f"{settings}; {list(names)}".encode()).digest() + _digest(blocks, step)
    mine: Array = np.frombuffer(record, np.uint8)
    records = wait_or_end(group, lambda: group.all_gather(mine, key=key))
    if others := _unlike(records[:, :_HALF]):
        raise _mismatch(others, f"other settings or parameters than rank 0: here, {settings}", key)
    return _unlike(records[:, _HALF:])


def check(group: Group, key: str, settings: str, blocks: Sequence[Block], step: int) -> None:
    """Raise MismatchError on all ranks if outer states differ. All ranks call this."""
    if others := differing(group, key, settings, blocks, step):
        raise _mismatch(
            others,
            "another outer state than rank 0 (values, velocity, step): all ranks must load the "
            "same checkpoint, or none",
            key,
        )


def take_over(group: Group, key: str, blocks: Sequence[Block]) -> None:
    """Give all ranks rank 0's outer values. All ranks call this."""
    for block in blocks:
        if block.outer.numel():
            host = block.outer.cpu()
            values = host.numpy()
            wait_or_end(group, lambda v=values: group.broadcast(v, key=key, out=v))  # type: ignore[misc]
            block.outer.copy_(host)


def _digest(blocks: Sequence[Block], step: int) -> bytes:
    found = sha256(f"{step}".encode())
    for block in blocks:
        for flat in (block.outer, block.velocity):
            if flat is not None:
                found.update(flat_bytes(flat.cpu().numpy()))
    return found.digest()


def _unlike(records: Array) -> list[int]:
    """The ranks whose record differs from rank 0's."""
    return [rank for rank, record in enumerate(records) if (record != records[0]).any()]


def _mismatch(ranks: list[int], what: str, key: str) -> MismatchError:
    verb = "has" if len(ranks) == 1 else "have"
    return MismatchError(
        f"{name_ranks(ranks)} {verb} {what}", rank=ranks[0], key=key, reason="mismatch"
    )
