"""One contender's model, wrapped in DDP or an Overlap as a user would do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import reducer_client.torch
from bench.training.case import COMPUTE, NCCL, OVERLAP, Case, Contender
from bench.training.model import ANSWERS, SHAPES, Bert
from bench.training.text import Batch, Passages
from reducer_client import Group
from reducer_client.torch import Overlap, ReductionState

_SEED = 2
# Learning rate for a width of 1; wider models need a smaller one, or they diverge.
_LEARNING_RATE = 12.8


class Trainer:
    """Trains one model; all contenders start with the same parameters and see the same passages.

    Args:
        group: the reducers; None without them.
        nccl: process group of the contender nccl; None without that contender.
    """

    def __init__(
        self,
        case: Case,
        contender: Contender,
        rank: int,
        group: Group | None,
        nccl: dist.ProcessGroup | None = None,
    ) -> None:
        self.contender = contender
        self._device = case.device
        self._batch, self._rank = case.batch, rank
        self._passages = Passages(case.sequence, SHAPES[case.size].words, ANSWERS)
        torch.manual_seed(_SEED)
        model = Bert(SHAPES[case.size], case.device_ms).to(case.device)
        rate = _LEARNING_RATE / SHAPES[case.size].width
        self._optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        self._model: nn.Module = model
        self._overlap: Overlap | None = None
        self._syncs: Callable[[], AbstractContextManager[None]] = nullcontext
        if contender.kind == OVERLAP:
            assert group is not None
            options = _bucket_options(contender)
            self._overlap = Overlap(model, self._optimizer, group, **options)
            self._state: ReductionState | None = self._overlap.state
        else:
            self._model = wrapped = _wrap(model, contender, nccl)
            self._state = _register_hook(wrapped, contender, group)
            if contender.kind == COMPUTE:
                self._syncs = wrapped.no_sync
        self._steps = 0

    def step(self) -> float:
        """Train on the next batch; returns this rank's loss."""
        host = self._passages.batch(self._batch, self._steps, self._rank)
        batch = Batch(*(tensor.to(self._device) for tensor in host))
        self._steps += 1
        with self._syncs():
            logits = self._model(batch.tokens, batch.places)
            loss = nn.functional.cross_entropy(logits, batch.words)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        return loss.item()

    def finish(self) -> None:
        """Wait until the last step is over."""
        if self._overlap is not None:
            self._overlap.synchronize()
        if self._device == "cuda":
            torch.cuda.synchronize()

    @property
    def reduced_bytes(self) -> int:
        """Bytes of gradients that went through the reducers."""
        return self._state.bytes_reduced if self._state else 0

    def parameters(self) -> torch.Tensor:
        """All parameters in one array."""
        return torch.cat([p.detach().flatten() for p in self._model.parameters()])

    def digest(self) -> str:
        """A hash of the bits of all parameters."""
        digest = hashlib.sha256()
        for parameter in self._model.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
        return digest.hexdigest()


def _wrap(
    model: nn.Module, contender: Contender, nccl: dist.ProcessGroup | None
) -> DistributedDataParallel:
    return DistributedDataParallel(
        model,
        process_group=nccl if contender.kind == NCCL else None,
        # The seed makes the parameters equal; the digests at the end check this.
        init_sync=False,
        gradient_as_bucket_view=True,
        **_bucket_options(contender),
    )


def _bucket_options(contender: Contender) -> dict[str, Any]:
    return {} if contender.bucket_mib is None else {"bucket_cap_mb": contender.bucket_mib}


def _register_hook(
    model: DistributedDataParallel, contender: Contender, group: Group | None
) -> ReductionState | None:
    """Register the contender's hook; gloo, nccl and compute use DDP's own all-reduce."""
    if contender.uses_reducers:
        assert group is not None
        return reducer_client.torch.attach(model, group, **attach_options(contender))
    if contender.kind == "gloo-bf16":
        model.register_comm_hook(None, _narrow_hook)
    return None


# Wraps torch's hook, which DDP refuses by its name without CUDA and NCCL, though gloo can sum
# bfloat16. No annotations: DDP compares them with classes, and in this module they are strings.
def _narrow_hook(state, bucket):  # type: ignore[no-untyped-def]
    return bf16_compress_hook(state, bucket)


def attach_options(contender: Contender) -> dict[str, Any]:
    """The options of `attach`. Raises ValueError if this client does not support the contender."""
    if contender.kind == "reducers-bf16":
        return {"wire_dtype": "bfloat16"}
    if contender.kind == "reducers-priority":
        return {"prioritize": True}
    return {}
