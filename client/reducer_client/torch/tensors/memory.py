"""Which tensors have memory that holds their values, and what stands for those that have not."""

from __future__ import annotations

from typing import Any

import torch


def with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; for an un-waited result of a functional collective that result, waited for.

    Raises TypeError for one whose values lie elsewhere: a wrapper such as DTensor, a fake tensor.
    A lazily conjugated or negated tensor has memory, which holds other values: ``resolved``.
    """
    wait: Any = getattr(tensor, "trigger_wait", None)  # AsyncCollectiveTensor: imported late
    if wait is not None:
        tensor = wait()
    if tensor.is_nested or not _has_memory(tensor):
        raise TypeError(
            f"{_describe(tensor)} has no memory of its own that holds its values: give a plain "
            "tensor (to_local() of a DTensor, to_tensor(0) of a MaskedTensor, unbind() of a nested "
            "tensor, dequantize(), to_dense(), clone())"
        )
    return tensor


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether the tensor's values are the conjugates, or the negatives, of its memory."""
    return tensor.is_conj() or tensor.is_neg()


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or for a lazy one a copy whose memory holds its values."""
    return tensor.resolve_conj().resolve_neg()


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or hasattr(tensor, "fake_mode"):
        return False
    if tensor.is_quantized:  # what its memory holds means nothing without its scale
        return False
    return tensor.is_meta or tensor.numel() == 0 or tensor.data_ptr() != 0


def _describe(tensor: torch.Tensor) -> str:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"a {type(tensor).__name__}"
    if tensor.is_nested or tensor.layout is not torch.strided:
        return "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
    if tensor.is_quantized:
        return "a quantized tensor"
    return "a ZeroTensor" if tensor._is_zerotensor() else "a tensor whose storage was freed"
