"""CUDA devices, by torch's streams and events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch


class CudaDevice:
    """See ``Device``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def current_stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's

    def new_event(self) -> torch.cuda.Event:
        # A blocking event lets the waiting thread sleep; others let it spin.
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def queue(self, stream: Any, work: Callable[[], None]) -> None:
        with torch.cuda.stream(stream):
            work()

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def check_start(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a collective of CUDA tensors while a CUDA graph is captured: the tensors go "
                "through host memory, which a graph cannot replay. Capture the forward and the "
                "backward pass without the collectives, and make the calls after the replay"
            )
