"""A small byte-level transformer, and modules of the same size that only stand for one."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

_BYTES = 256
WIDTH, LAYERS, HEADS, CONTEXT = 128, 2, 4, 64


class Transformer(nn.Module):
    """Predicts the next byte. No dropout, so that methods differ by what they send alone."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(_BYTES, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu",
            batch_first=True, norm_first=True,
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, _BYTES)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))
        self.apply(_initialize)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """The loss in nats a byte. ``text`` has shape (batch, CONTEXT + 1)."""
        begin, follows = text[:, :-1], text[:, 1:]
        hidden = self.bytes(begin) + self.places(torch.arange(CONTEXT))
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return nn.functional.cross_entropy(logits.flatten(0, 1), follows.flatten())


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.MultiheadAttention):
        nn.init.normal_(module.in_proj_weight, std=0.02)


class Hollow(nn.Module):
    """Parameters of another module's shapes whose gradients cost almost nothing: all are 1e-3."""

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.zeros_like(p) for p in like.parameters())

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return torch.stack([p.sum() for p in self.all]).sum() * 1e-3


class Accelerated(nn.Module):
    """Stands for a model on an accelerator of its own: its layers take time, but no core.

    As with a real one, the program runs ahead of the accelerator, and only a gradient waits for it:
    backward takes two thirds of the time, and the gradient of a layer is there when the layer's
    share has passed. So DistributedDataParallel overlaps as with a real model.

    Args:
        layers: each with ``size`` parameters.
        seconds: of a whole forward and backward.
    """

    def __init__(self, layers: int, size: int, seconds: float) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.zeros(size) for _ in range(layers))
        self._seconds = seconds

    def forward(self) -> torch.Tensor:
        began, count = time.perf_counter(), len(self.all)
        value = torch.zeros(())
        for number, parameter in enumerate(self.all):  # backward comes to the last one first
            passed = (1 + 2 * (count - number) / count) / 3
            value = value + _Busy.apply(parameter, began + passed * self._seconds)  # type: ignore[no-untyped-call]
        return value


class _Busy(torch.autograd.Function):
    """A layer, whose gradient, 1e-3, is there at a given time of `time.perf_counter`."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, at: float) -> torch.Tensor:
        ctx.at, ctx.shape = at, parameter.shape
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = torch.full(ctx.shape, 1e-3)
        time.sleep(max(0.0, ctx.at - time.perf_counter()))
        return gradient, None
