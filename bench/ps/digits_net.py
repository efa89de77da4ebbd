"""The training of `bench.ps digits`: a small network for handwritten digits, in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Arrays = dict[str, Floats]
HIDDEN = 64


def write_data(path: Path) -> None:
    """Write scikit-learn's digits: a quarter of each class is for the test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(
        (images / 16).astype(np.float32), labels, test_size=0.25, random_state=0, stratify=labels
    )
    names = ("images", "test_images", "labels", "test_labels")
    np.savez(path, **dict(zip(names, parts, strict=True)))


def shares(labels: Integers, workers: int, skewed: bool, seed: int) -> list[Integers]:
    """Each worker's images. Skewed: the last one has classes 8 and 9, the others the rest."""
    order = np.random.default_rng(seed).permutation(len(labels))
    if not skewed:
        return list(np.array_split(order, workers))
    is_last = labels[order] >= 8
    return [*np.array_split(order[~is_last], workers - 1), order[is_last]]


def first_values(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "hidden": random.normal(0, (2 / 64) ** 0.5, (64, HIDDEN)).astype(np.float32),
        "hidden bias": np.zeros(HIDDEN, np.float32),
        "scores": random.normal(0, (1 / HIDDEN) ** 0.5, (HIDDEN, 10)).astype(np.float32),
        "scores bias": np.zeros(10, np.float32),
    }


def gradients(net: Arrays, images: Floats, labels: Integers) -> Arrays:
    """The gradients of the mean cross entropy of a batch, by tensor."""
    hidden, scores = _forward(net, images)
    scores = np.exp(scores - scores.max(1, keepdims=True))
    chances = scores / scores.sum(1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    chances /= np.float32(len(labels))
    back = (chances @ net["scores"].T) * (hidden > 0)
    return {
        "hidden": images.T @ back,
        "hidden bias": back.sum(0),
        "scores": hidden.T @ chances,
        "scores bias": chances.sum(0),
    }


def accuracy(net: Arrays, images: Floats, labels: Integers) -> float:
    return float((_forward(net, images)[1].argmax(1) == labels).mean())


def _forward(net: Arrays, images: Floats) -> tuple[Floats, Floats]:
    hidden = np.maximum(images @ net["hidden"] + net["hidden bias"], 0)
    return hidden, hidden @ net["scores"] + net["scores bias"]
