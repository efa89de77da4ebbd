"""The description of a table: its tensors, optimizer and mode, as lanes and workers tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import msgpack  # type: ignore[import-untyped]  # ships no stubs

from reducer.optimizers import Optimizer, OptimizerError, from_fields, to_fields
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.errors import ProtocolError
from reducer_client.tables.layout import Layout, Vector, unpack_tensors
from reducer_client.tables.modes import Mode, WireMode, from_the_wire


@dataclass(frozen=True)
class Description:
    """``wire``: the mode in frames. ``digest``: the SHA-256 of the first values; b"" without first
    values. ``rate``: the learning rate of a restored table; -1 is the optimizer's own.
    """

    layout: Layout
    optimizer: Optimizer
    wire: WireMode
    digest: bytes = b""
    rate: float = -1.0

    @cached_property
    def mode(self) -> Mode:
        return from_the_wire(self.wire)

    @property
    def in_steps(self) -> bool:
        return self.wire.mode == "step"

    def call(self, partition: int) -> TableCall:
        """The call that describes the table to a lane."""
        layout, wire = self.layout, self.wire
        return TableCall(
            "table",
            name=layout.name,
            count=layout.count,
            shard=layout.shard,
            partitions=layout.partitions,
            partition=partition,
            optimizer=msgpack.packb(to_fields(self.optimizer)),
            mode=wire.mode,
            bound=wire.bound,
            workers=wire.workers,
            quorum=wire.quorum,
            late=wire.late,
            digest=self.digest,
            tensors=layout.packed_tensors,
            rate=self.rate,
        )


@dataclass(frozen=True)
class TableInfo:
    """A table that the lanes have.

    Attributes:
        name: its name.
        shapes: the shape of each tensor, by name.
        optimizer: the optimizer.
        mode: when pushes are applied.
        version: the least version of its shards.
        step: the current common step of the workers; 0 without common steps.
        lr: the learning rate in use; None if no worker has set one.
        ready: whether all first values have come.
        bytes: memory that the table takes on all lanes.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    optimizer: Optimizer
    mode: Mode
    version: int
    step: int
    lr: float | None
    ready: bool
    bytes: int


def describe(notices: Sequence[Notice]) -> tuple[TableInfo, Description]:
    """A table from its description by each lane that has a part of it. Raises ProtocolError."""
    first = notices[0]
    layout = Layout(first.name, unpack_tensors(first.tensors), first.partitions, first.shard)
    _check(layout, first)
    wire = WireMode(
        first.mode,
        first.bound,
        first.workers,
        first.quorum,
        "carry" if first.late == "carry" else "drop",
    )
    try:
        optimizer = from_fields(msgpack.unpackb(first.optimizer))
    except (OptimizerError, ValueError, TypeError) as error:
        raise ProtocolError(
            f"table {first.name!r}: the optimizer that a lane describes cannot be read: {error}"
        ) from None
    description = Description(layout, optimizer, wire)
    rate = max(notice.rate for notice in notices)
    info = TableInfo(
        name=first.name,
        shapes={tensor.name: tensor.shape for tensor in layout.tensors},
        optimizer=optimizer,
        mode=description.mode,
        version=min(notice.version for notice in notices),
        step=max(notice.step for notice in notices),
        lr=None if rate < 0 else rate,
        ready=all(notice.ready for notice in notices),
        bytes=sum(notice.size for notice in notices),
    )
    return info, description


def digest_of(flat: Vector) -> bytes:
    """SHA-256 of the values, as they are in frames: float32, little endian."""
    return sha256(flat.astype("<f4", copy=False).data).digest()


def _check(layout: Layout, notice: Notice) -> None:
    if not layout.shard or not layout.partitions or layout.count != notice.count:
        raise ProtocolError(
            f"table {notice.name!r}: its tensors have {layout.count} elements, but a lane tells of "
            f"{notice.count} in shards of {notice.shard}, over {notice.partitions} lanes"
        )
