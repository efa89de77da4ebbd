"""One bucket: the gradients of some parameters in one run of memory, and then their mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from reducer_client.torch.hook.ddp import ReductionState, average


class Bucket:
    """The parameters of a bucket have one dtype and one device.

    Attributes:
        places: the places of the parameters in the list of all.
        parameters: the parameters.
        nbytes: size of the bucket.
        means: a view of the bucket's memory for each parameter. Between `send` and the end of
            the exchange, they belong to the client.
    """

    def __init__(self, index: int, places: Sequence[int], parameters: Sequence[Any]) -> None:
        self.index = index
        self.places = list(places)
        self.parameters = list(parameters)
        sizes = [parameter.numel() for parameter in parameters]
        first = parameters[0]
        self._flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self.means = [
            part.view(parameter.shape)
            for part, parameter in zip(torch.split(self._flat, sizes), parameters, strict=True)
        ]
        self.nbytes = self._flat.numel() * self._flat.element_size()
        self._missing = len(self.parameters)
        self._filled: torch.cuda.Event | None = None
        self._exchange: torch.futures.Future[torch.Tensor] | None = None

    def fill(self, at: int, gradient: torch.Tensor) -> bool:
        """Copy the gradient of the parameter ``at``. Returns whether the bucket is full."""
        self.means[at].copy_(gradient)
        self._missing -= 1
        if not self._missing and self._flat.is_cuda:
            self._filled = torch.cuda.current_stream(self._flat.device).record_event()
        return not self._missing

    def send(self, state: ReductionState, on_end: Callable[[Bucket], None]) -> None:
        """Start the mean over all ranks. Any thread may call it. Raises ReducerErrors.

        ``on_end`` is called with the bucket, on any thread.
        """
        state.bytes_reduced += self.nbytes
        self._missing = len(self.parameters)
        if self._filled is not None:  # by the stream of backward(), which is not this thread's
            torch.cuda.current_stream(self._flat.device).wait_event(self._filled)
        residual = state.residual(self._flat, self.parameters)
        self._exchange = average(state, self._flat, self.index, residual)
        self._exchange.add_done_callback(lambda _: on_end(self))

    def end(self) -> None:
        """End the exchange, for which ``on_end`` was called. Raises a RuntimeError if it failed.

        On CUDA, the current stream waits for the copy of the means.
        """
        assert self._exchange is not None
        exchanged, self._exchange = self._exchange, None
        exchanged.wait()
