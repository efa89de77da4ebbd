"""Training on scikit-learn's digits by several ranks, and by one process on the joined batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
STEPS = 12  # in an epoch
PATIENCE = 200.0  # seconds for ranks that import TensorFlow on a busy machine


@cache
def _digits() -> tuple[Any, Any]:
    """The images and labels of `sklearn.datasets.load_digits`, without the two seconds that the
    import of scikit-learn takes in each rank. The package is in the group "dev"; tests skip
    without it."""
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    return (table[:, :64] / 16).astype(np.float32), table[:, 64].astype(np.int32)


def share(rank: int, world: int) -> tuple[Any, Any]:
    """A rank's images and labels; in each step each rank has another batch."""
    images, labels = _digits()
    steps = np.arange(STEPS * world * BATCH).reshape(STEPS, world, BATCH)
    mine = steps[:, rank].ravel()
    return images[mine], labels[mine]


def together(world: int) -> tuple[Any, Any]:
    """The joined batches of all ranks, ``world * BATCH`` images each, to train in one process."""
    images, labels = _digits()
    return images[: STEPS * world * BATCH], labels[: STEPS * world * BATCH]


def digest(arrays: Sequence[Any]) -> str:
    """A hash of the bits of arrays."""
    return hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()


def assert_close(mine: Sequence[Any], other: Sequence[Any], tolerance: float = 1e-5) -> None:
    """Assert equality up to ``tolerance``, relative to the largest element of each array."""
    for a, b in zip(mine, other, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.abs(a - b).max() <= tolerance * max(1e-3, np.abs(b).max())
