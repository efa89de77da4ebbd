"""Checks whether the memory of a tensor holds its values, and makes tensors for which it does."""

from __future__ import annotations

from typing import Any

import torch


def with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself; for a pending result of a functional collective, the completed tensor.

    Raises TypeError if the values are not in the tensor's own memory, as for a DTensor or a fake
    tensor. Accepts lazily conjugated or negated tensors, for which `resolved` is needed.
    """
    wait: Any = getattr(tensor, "trigger_wait", None)  # AsyncCollectiveTensor, not imported here
    if wait is not None:
        tensor = wait()
    if tensor.is_nested or not _has_memory(tensor):
        raise TypeError(
            f"{_describe(tensor)} has no memory that holds its values: expected a plain tensor, "
            "such as the result of to_local() of a DTensor, to_tensor(0) of a MaskedTensor, "
            "unbind() of a nested tensor, dequantize(), to_dense() or clone()"
        )
    return tensor


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory holds the conjugates or the negatives of its values."""
    return tensor.is_conj() or tensor.is_neg()


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself; for a lazy tensor, a copy whose memory holds its values."""
    return tensor.resolve_conj().resolve_neg()


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or hasattr(tensor, "fake_mode"):
        return False
    if tensor.is_quantized:  # the memory is meaningless without the scale
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
