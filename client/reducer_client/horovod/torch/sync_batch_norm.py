"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from reducer_client.horovod.basics import size
from reducer_client.horovod.requests import Sum
from reducer_client.horovod.synchronous import ends_on_interrupt
from reducer_client.horovod.torch.ops import allreduce


class SyncBatchNorm(_BatchNorm):
    """``BatchNorm`` with the mean and variance of all ranks' batches together.

    On CPU and GPU, for input of shape ``(N, C, ...)``; N may differ between the ranks. All ranks
    must call their modules in the same order. The sums are float32 at least.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm: expected (N, C, ...), got {tuple(input.shape)}")

    @ends_on_interrupt
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if size() == 1 or not (self.training or self.running_mean is None):
            return super().forward(input)
        axes = [0, *range(2, input.dim())]
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        per_channel = wide.new_tensor([input.numel() // input.shape[1]])
        totals = allreduce(torch.cat([wide.sum(axes), per_channel]), op=Sum)
        count = totals[-1].detach()
        mean = totals[:-1] / count
        centred = wide - _along(mean, input)
        variance = allreduce(centred.square().sum(axes), op=Sum) / count
        self._update_running_stats(
            mean.detach(), variance.detach() * count / (count - 1).clamp(min=1)
        )
        normal = centred * _along(torch.rsqrt(variance + self.eps), input)
        if self.affine:
            normal = normal * _along(self.weight, input) + _along(self.bias, input)
        return normal.to(input.dtype)

    def _update_running_stats(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update the running statistics; ``variance`` is the unbiased one."""
        if not self.training or not self.track_running_stats:
            return
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked.add_(1)
        weight = self.momentum
        if weight is None:
            weight = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


def _along(values: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """One value per channel, of a shape that broadcasts over the input."""
    return values.view(1, -1, *[1] * (input.dim() - 2))
