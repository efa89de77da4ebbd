"""The task of the examples: handwritten digits of 8 x 8 pixels, which are part of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

Part = tuple[np.ndarray, np.ndarray]
TRAINING_IMAGES = 1440


def load() -> tuple[Part, Part]:
    """(images, labels) for training, and those for the test: float32 (n, 64) from 0 to 1, int64."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int64)
    training = slice(None, TRAINING_IMAGES)
    test = slice(TRAINING_IMAGES, None)
    return (images[training], labels[training]), (images[test], labels[test])


def report(accuracy: float, stats: dict[str, Any]) -> None:
    """The last line of an example; ``stats`` are those of its group, so only one rank need ask."""
    taken = sum(lane["bytes_in"] for lane in stats["reducers"])
    print(f"accuracy {accuracy:.3f}, {taken:,} bytes through the reducers", flush=True)
