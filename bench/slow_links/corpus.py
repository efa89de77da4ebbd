"""Text that every machine has: this project's documents and the sources of Python's library."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

_ROOT = Path(__file__).resolve().parents[2]
_DOCUMENTS = ("*.md", "docs/*.md", "bench/*.md", "examples/*.md", "reducer/wire/*.md")
# Each tenth file is for validation.
_TENTH = 10
_TRAINING, _VALIDATION = 1, 2  # what a window is for, so that their random numbers differ


class Corpus:
    """Windows of bytes. Equal for all machines with this commit and this version of Python.

    Attributes:
        sha256: of all text, to tell whether two results are of the same text.
        size: of the training text, in bytes.
    """

    def __init__(self, context: int) -> None:
        self._context = context
        texts = [path.read_bytes() for path in _files()]
        self.sha256 = hashlib.sha256(b"".join(texts)).hexdigest()
        held_out = b"".join(texts[::_TENTH])
        training = b"".join(t for number, t in enumerate(texts) if number % _TENTH)
        self.size = len(training)
        self._training = np.frombuffer(training, np.uint8)
        self._held_out = np.frombuffer(held_out, np.uint8)

    def batch(self, size: int, step: int, rank: int) -> torch.Tensor:
        """Random windows for a step of a rank, shape (size, context + 1): text and what follows."""
        return self._draw(self._training, size, (_TRAINING, step, rank))

    def validation(self, size: int) -> torch.Tensor:
        """Windows that are not in the training text, the same in each call."""
        return self._draw(self._held_out, size, (_VALIDATION,))

    def _draw(self, text: npt.NDArray[np.uint8], size: int, seed: tuple[int, ...]) -> torch.Tensor:
        begins = np.random.default_rng(seed).integers(len(text) - self._context, size=(size, 1))
        return torch.from_numpy(text[begins + np.arange(self._context + 1)].astype(np.int64))


def _files() -> Iterator[Path]:
    for pattern in _DOCUMENTS:
        yield from sorted(_ROOT.glob(pattern))
    library = Path(sysconfig.get_path("stdlib"))
    yield from sorted(library.glob("*.py"))
    for package in ("asyncio", "collections", "concurrent", "email", "http", "json", "logging"):
        yield from sorted((library / package).glob("*.py"))
