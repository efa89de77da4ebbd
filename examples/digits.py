"""The data of the examples: scikit-learn's handwritten digits of 8 x 8 pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

Part = tuple[np.ndarray, np.ndarray]
TRAINING_IMAGES = 1440


def load() -> tuple[Part, Part]:
    """(images, labels) for training and for the test: float32 (n, 64), 0 to 1, and int64 (n,)."""
    from sklearn.datasets import load_digits  # takes seconds; parameter servers load no data

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int64)
    training = slice(None, TRAINING_IMAGES)
    test = slice(TRAINING_IMAGES, None)
    return (images[training], labels[training]), (images[test], labels[test])


def report(accuracy: float, stats: dict[str, Any]) -> None:
    """Print the last line of an example. ``stats`` is ``Group.stats()`` of any one rank."""
    taken = sum(lane["bytes_in"] for lane in stats["reducers"])
    print(f"accuracy {accuracy:.3f}, {taken:,} bytes through the reducers", flush=True)
