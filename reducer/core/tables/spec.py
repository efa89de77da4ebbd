"""The description of a table by its workers, and the shards of the table that a lane has."""

from __future__ import annotations

from typing import Final

from reducer.optimizers import Optimizer, OptimizerError, Rule, from_fields
from reducer.wire.errors import MismatchError, ProtocolError
from reducer.wire.keys import key_id
from reducer.wire.table_messages import TableCall, unpack_fields

ITEM_BYTES: Final = 4  # of a float32
# The fields that all workers must describe alike.
_ALIKE: Final = (
    "count", "shard", "partitions", "partition", "optimizer", "mode", "bound", "workers", "quorum",
    "late", "tensors",
)  # fmt: skip
_LONG: Final = 120  # characters of a value in a message


class Spec:
    """A table as the first `table` call describes it.

    `numbers`: the shards of this lane, ascending. `worker`: the worker that made the first call.
    `has_history`: the slots are the values of earlier versions.
    """

    __slots__ = ("call", "has_history", "key", "numbers", "optimizer", "slots", "worker")

    def __init__(self, call: TableCall, worker: int) -> None:
        """Raises ProtocolError for a description that no table can have."""
        self.call = call
        self.worker = worker
        self.key = key_id(call.name)
        self.optimizer = _optimizer(call)
        self.slots = tuple(slot.initial for slot in self.optimizer.slots)
        self.has_history = self.optimizer.rule == Rule.REPLACE and bool(self.slots)
        _check(call)
        if self.has_history and call.mode != "step":
            raise ProtocolError(
                f"table {call.name!r}: a history of {1 + len(self.slots)} values needs the mode "
                f"step, got {call.mode}"
            )
        shards = -(-call.count // call.shard)
        self.numbers = range((call.partition - self.key) % call.partitions, shards, call.partitions)

    def elements(self, shard: int) -> int:
        return min(self.call.shard, self.call.count - shard * self.call.shard)

    def size(self, shard: int) -> int:
        """Bytes of one array of the shard."""
        return self.elements(shard) * ITEM_BYTES

    @property
    def part(self) -> int:
        """Bytes of one array of all shards of this lane."""
        return sum([self.size(shard) for shard in self.numbers])

    @property
    def owns_steps(self) -> bool:
        """Whether this lane has shard 0, and so decides the table's steps."""
        return 0 in self.numbers

    def compare(self, call: TableCall, worker: int) -> None:
        """Raises MismatchError if a worker describes the table otherwise."""
        for name in _ALIKE:
            mine, other = getattr(self.call, name), getattr(call, name)
            if mine != other:
                raise MismatchError(
                    f"{_who(worker)} describes table {call.name!r} with {name} {_text(other)}, "
                    f"{_who(self.worker)} with {_text(mine)}: give the same on all workers"
                )
        if call.digest and self.call.digest and call.digest != self.call.digest:
            raise MismatchError(
                f"{_who(worker)} brings other first values for table {call.name!r} (SHA-256 "
                f"{call.digest.hex()[:16]}...) than {_who(self.worker)} "
                f"({self.call.digest.hex()[:16]}...): use one seed on all workers, or let one "
                "worker alone bring the values (initial=False on the others)"
            )


def _who(worker: int) -> str:
    return "a reader" if worker < 0 else f"worker {worker}"


def _text(value: object) -> str:
    """A value for a message. Packed fields are shown unpacked, if they can be."""
    text = repr(value)
    if isinstance(value, bytes):
        fields = unpack_fields(value)
        if fields is None:
            return f"{len(value)} bytes that differ"
        text = repr(fields)
    return text if len(text) <= _LONG else text[:_LONG] + "..."


def _optimizer(call: TableCall) -> Optimizer:
    fields = unpack_fields(call.optimizer)
    if fields is None:
        raise ProtocolError(f"table {call.name!r}: its optimizer is no msgpack map")
    try:
        return from_fields(fields)
    except OptimizerError as error:
        raise ProtocolError(f"table {call.name!r}: {error}") from None


def _check(call: TableCall) -> None:
    where = f"table {call.name!r}"
    if not call.name:
        raise ProtocolError("a table needs a name")
    if not call.count or not call.shard:
        raise ProtocolError(f"{where}: it needs at least one element, and shards of at least one")
    if not 0 <= call.partition < call.partitions:
        raise ProtocolError(f"{where}: partition {call.partition} of {call.partitions}")
    if call.mode == "ssp" and call.bound < 0:
        raise ProtocolError(f"{where}: ssp needs a bound from 0 on, got {call.bound}")
    if call.mode == "step" and not 1 <= call.quorum <= call.workers:
        raise ProtocolError(
            f"{where}: a quorum of {call.quorum} of {call.workers} workers; expected 1 to "
            f"{call.workers}"
        )
    if call.mode == "step" and call.bound < 1:
        raise ProtocolError(f"{where}: a step table needs a bound from 1 on, got {call.bound}")
