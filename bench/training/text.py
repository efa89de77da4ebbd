"""Passages of English with masked words, from the topics of Python's help()."""

from __future__ import annotations

import re
from collections import Counter
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

_UNKNOWN, _MASK = 0, 1
# BERT's share of words that are to be predicted.
_MASKED = 0.15


class Batch(NamedTuple):
    """Masked passages.

    ``tokens``, shape (size, length), has masks at ``places``, shape (size, masked). ``words``,
    shape (size * masked,), has the hidden tokens if they are among the answers.
    """

    tokens: torch.Tensor
    places: torch.Tensor
    words: torch.Tensor


class Passages:
    """Random passages of ``length`` tokens.

    A token is a word or a sign. The ``vocabulary`` most frequent tokens have a number each; all
    others share one. Only masked tokens among the ``answers`` most frequent are to be predicted.
    """

    def __init__(self, length: int, vocabulary: int, answers: int) -> None:
        self._length = length
        self._answers = answers
        text = "\n".join(topics[name] for name in sorted(topics)).lower()
        tokens = re.findall(r"\w+|[^\w\s]", text)
        if len(tokens) < length:
            raise ValueError(f"passages of {length} tokens: the text has {len(tokens)}; take fewer")
        frequent = Counter(tokens).most_common(vocabulary - 2)
        numbers = {token: number for number, (token, _) in enumerate(frequent, 2)}
        self._tokens = np.array([numbers.get(token, _UNKNOWN) for token in tokens])

    def batch(self, size: int, step: int, rank: int) -> Batch:
        """The batch of a step and rank, which is the same for all contenders."""
        random = np.random.default_rng((step, rank))
        begins = random.integers(len(self._tokens) - self._length + 1, size=(size, 1))
        tokens = self._tokens[begins + np.arange(self._length)]
        places = self._choose_places(size, random)
        words = np.take_along_axis(tokens, places, axis=1).reshape(-1)
        words[words >= self._answers] = _UNKNOWN
        np.put_along_axis(tokens, places, _MASK, axis=1)
        return Batch(*map(torch.from_numpy, (tokens, places, words)))

    def _choose_places(self, size: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Choose equally many places in every passage, so that ranks' losses have equal weights."""
        masked = max(1, round(_MASKED * self._length))
        return random.random((size, self._length)).argsort(axis=1)[:, :masked]
