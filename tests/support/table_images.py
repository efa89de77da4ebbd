"""Images of tables for tests of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from reducer.optimizers import Adam, Optimizer
from reducer_client.tables.checkpoints import TableImage
from reducer_client.tables.checkpoints.image import Tensors, Vector

ADAM = Adam(1e-3, convention="torch")
TENSORS: Tensors = (("layer1.weight", (5, 3)), ("layer1.bias", (3,)), ("scale", ()))


def image(
    seed: int = 0,
    name: str = "net",
    tensors: Tensors = TENSORS,
    optimizer: Optimizer = ADAM,
    **fields: Any,
) -> TableImage:
    """A table whose elements are random bits, NaNs and denormals among them."""
    count = sum(math.prod(shape) for _, shape in tensors)
    rng = np.random.default_rng(seed)

    def bits() -> Vector:
        return np.frombuffer(rng.bytes(4 * count), np.float32).copy()

    slots = {slot.name: bits() for slot in optimizer.slots}
    given = {"mode": {"mode": "sync"}, "state": {"seed": seed}, **fields}
    return TableImage(name, tensors, optimizer, bits(), slots, **given)


def contents(images: Sequence[TableImage]) -> list[Any]:
    """All that the images are, with the bits of their arrays."""
    return [
        (
            image.description,
            image.parameters.tobytes(),
            {name: slot.tobytes() for name, slot in image.slots.items()},
        )
        for image in images
    ]
