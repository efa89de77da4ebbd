"""BERT in its published sizes, with random weights and a head that predicts masked words."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_WORDS = 30_522
POSITIONS = 512
_SEGMENTS = 2
# Only the most frequent words are predicted. BERT predicts all words with its embedding table; with
# the few tokens of a step, this would take longer on CPUs than all layers together.
ANSWERS = 1024
# Width of one attention head in every published size.
_HEAD = 64


@dataclass(frozen=True)
class Shape:
    """The size of a model. ``words`` is the height of the embedding table."""

    width: int
    layers: int
    words: int = _WORDS


SHAPES = {
    "tiny": Shape(64, 1, words=2048),
    # 1.9 and 5.0 million parameters, most of them in equal layers, as in large models. In the other
    # sizes, most parameters are in the embedding, which is the last to get a gradient and the first
    # to be used.
    "layers": Shape(128, 8, words=1024),
    "deep": Shape(128, 24, words=1024),
    "10m": Shape(256, 4),  # BERT-mini: 11.4 million parameters
    "30m": Shape(512, 4),  # BERT-small: 29.3
    "110m": Shape(768, 12),  # BERT-base: 110.3
}


class Bert(nn.Module):
    """BERT without dropout, since with dropout the losses of contenders could not be compared."""

    def __init__(self, shape: Shape, device_ms: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.width)
        self.positions = nn.Embedding(POSITIONS, shape.width)
        self.segments = nn.Embedding(_SEGMENTS, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        layer = nn.TransformerEncoderLayer(
            shape.width,
            shape.width // _HEAD,
            dim_feedforward=4 * shape.width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        dense = nn.Linear(shape.width, shape.width)
        answers = nn.Linear(shape.width, ANSWERS)
        self.head = nn.Sequential(dense, nn.GELU(), nn.LayerNorm(shape.width), answers)
        self.apply(_initialize)
        compute: Any = Device.apply
        for each in self.encoder.layers if device_ms else ():
            each.register_forward_hook(lambda _, __, hidden: compute(hidden, device_ms / 1e3))

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Logits for the masked words.

        Args:
            tokens: shape (batch, sequence).
            places: shape (batch, masked), positions in the sequence.

        Returns:
            Shape (batch * masked, ANSWERS).
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        segments = torch.zeros_like(tokens)
        embedded = self.words(tokens) + self.positions(positions) + self.segments(segments)
        hidden = self.encoder(self.norm(embedded))
        passages = torch.arange(len(hidden), device=hidden.device)
        masked = hidden[passages[:, None], places].flatten(end_dim=1)
        logits: torch.Tensor = self.head(masked)
        return logits


class Device(torch.autograd.Function):
    """Takes the time that an accelerator would take for a layer, and leaves the cores to others.

    Workers whose layers computed for so long would share this machine's few cores with the network.
    """

    @staticmethod
    def forward(context: Any, hidden: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = 2 * seconds  # backward() computes twice as much
        time.sleep(seconds)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.seconds)
        return gradient, None


def _initialize(module: nn.Module) -> None:
    """BERT's initialization: normal with deviation 0.02. Without this, all layers are copies."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.MultiheadAttention):
        nn.init.normal_(module.in_proj_weight, std=0.02)


def gradient_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())
