"""The data that the demo trains on: the topics of Python's help(), letter by letter."""

from __future__ import annotations

from pydoc_data.topics import topics

import torch

SIGNS = 128  # of ASCII
CONTEXT = 8


class Text:
    """Random places of a text: the letters before a place, and the letter that follows."""

    def __init__(self) -> None:
        text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def batch(self, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(contexts, next letters) of shapes (size, CONTEXT) and (size,), the same for a seed."""
        random = torch.Generator().manual_seed(seed)
        places = torch.randint(len(self._bytes) - CONTEXT, (size, 1), generator=random)
        contexts = self._bytes[places + torch.arange(CONTEXT)]
        return contexts, self._bytes[places[:, 0] + CONTEXT]
