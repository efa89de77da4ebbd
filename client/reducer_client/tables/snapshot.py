"""A table's whole state at one moment, from which it can go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reducer.optimizers import Optimizer
from reducer_client.tables.layout import FLOAT32, Layout, Vector


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Made by `Table.snapshot`, used by `ParameterServer.table`.

    Attributes:
        parameters: float32, shape (elements,): the tensors behind each other, each in C order.
        slots: the optimizer's state: an array like ``parameters`` for each slot, by its name.
        versions: the version of each shard. They are equal in the modes with common steps.
    """

    parameters: Vector
    slots: Mapping[str, Vector]
    versions: tuple[int, ...]

    def arrays(self, layout: Layout, optimizer: Optimizer) -> list[Vector]:
        """The parameters and the slots, in the order of frames. Raises ValueError."""
        where = f"table {layout.name!r}: state"
        names = [slot.name for slot in optimizer.slots]
        if sorted(names) != sorted(self.slots) or not self.versions:
            raise ValueError(
                f"{where}: expected the slots of {optimizer.NAME}, {names}, and the versions; got "
                f"{sorted(self.slots)} and {len(self.versions)} versions"
            )
        arrays = [self.parameters, *(self.slots[name] for name in names)]
        for array in arrays:
            is_plain = array.flags.c_contiguous and array.dtype == FLOAT32
            if not is_plain or array.shape != (layout.count,):
                raise ValueError(
                    f"{where}: expected contiguous float32 of shape ({layout.count},), got "
                    f"{array.dtype} of shape {array.shape}"
                )
        return [array.copy() for array in arrays]

    def versions_for(self, layout: Layout) -> list[int]:
        """The versions of a layout's shards. Over other lanes, all take the greatest one."""
        if len(self.versions) == layout.shards:
            return list(self.versions)
        return [max(self.versions)] * layout.shards
