"""Tables as images for checkpoints, and images as first values of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reducer.optimizers import NoOptimizer
from reducer_client.tables.checkpoints import CheckpointError, TableImage
from reducer_client.tables.layout import Layout, Tensor, Vector
from reducer_client.tables.modes import Mode, WireMode, from_the_wire
from reducer_client.tables.table import Table


def image_of(table: Table, timeout: float | None = None) -> TableImage:
    """The table as it is now: parameters, slots, versions and learning rate.

    The image of a table with common steps is the end of one step. In the other modes the shards may
    be copied at different moments: a push may be in some of the shards only.

    Raises the errors of `Table.pull`.
    """
    layout = table.layout
    vectors = [np.empty(layout.count, np.float32) for _ in range(1 + len(table.optimizer.slots))]
    versions = table.pull_arrays(vectors, timeout)
    slots = [slot.name for slot in table.optimizer.slots]
    return TableImage(
        name=table.name,
        tensors=tuple((tensor.name, tensor.shape) for tensor in layout.tensors),
        optimizer=table.optimizer,
        parameters=vectors[0],
        slots=dict(zip(slots, vectors[1:], strict=True)),
        mode=table.wire_mode._asdict(),
        state={"versions": versions, "shard": layout.shard, "lr": table.lr},
    )


def mode_of(image: TableImage) -> Mode:
    """The mode that the table had. Raises CheckpointError if the image does not tell."""
    try:
        return from_the_wire(WireMode(**image.mode))
    except TypeError:
        raise CheckpointError(
            f"table {image.name!r}: the checkpoint names no mode that this client knows: "
            f"{dict(image.mode)!r:.100}"
        ) from None


def rate_of(image: TableImage) -> float:
    """The learning rate that the table had; -1 for the optimizer's own."""
    rate: Any = image.state.get("lr")
    if not isinstance(rate, float) or isinstance(image.optimizer, NoOptimizer):
        return -1.0
    return -1.0 if rate == image.optimizer.lr else rate


def tensors_of(image: TableImage) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, tuple(shape)) for name, shape in image.tensors)


def vectors_of(image: TableImage) -> list[Vector]:
    """The parameters, then the slots in the optimizer's order."""
    return [image.parameters, *(image.slots[slot.name] for slot in image.optimizer.slots)]


def versions_for(image: TableImage, layout: Layout) -> list[int]:
    """The version of each shard of the layout.

    The shards of the image may have been cut for another number of lanes. A shard that has parts of
    several old ones gets the greatest of their versions, so that no optimizer repeats a step.
    """
    versions, size = _versions(image.state, layout.count, image.name)
    found = []
    for shard in range(layout.shards):
        place = layout.place(shard)
        found.append(max(versions[place.start // size : (place.stop - 1) // size + 1]))
    return found


def _versions(state: Mapping[str, Any], count: int, name: str) -> tuple[list[int], int]:
    versions: Any = state.get("versions")
    size: Any = state.get("shard")
    is_size = isinstance(size, int) and size > 0
    if not is_size or not isinstance(versions, list) or len(versions) != -(-count // size):
        raise CheckpointError(
            f"table {name!r}: the checkpoint does not tell the versions of its shards"
        )
    if not all(isinstance(version, int) and version >= 0 for version in versions):
        raise CheckpointError(f"table {name!r}: the versions of its shards must be numbers")
    return versions, size
