"""Tensors whose memory holds their values, and tensors whose memory does not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode

from reducer_client.torch.tensors.memory import is_lazy, resolved, with_memory
from reducer_client.torch.tensors.packing import Packing


class _Wrapper(torch.Tensor):
    """A subclass whose values are elsewhere, as DTensor's are."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} of a wrapper")


class _Named(torch.Tensor):
    """A subclass with memory of its own."""


def _freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(4)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # by torch 2.13 itself
@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (lambda: _Wrapper(torch.ones(4)), "a _Wrapper"),
        (_fake, "a FakeTensor"),
        (lambda: torch._efficientzerotensor(4), "a ZeroTensor"),
        (_freed, "a tensor whose storage was freed"),
        (lambda: torch.ones(4).to_mkldnn(), "a tensor of layout torch._mkldnn"),
        (lambda: torch.eye(2).to_sparse(), "a tensor of layout torch.sparse_coo"),
        (lambda: torch._empty_affine_quantized([4], dtype=torch.quint8), "a quantized tensor"),
    ],
)
def test_a_tensor_without_memory_is_refused_by_its_name(tensor: Any, named: str) -> None:
    with pytest.raises(TypeError, match=rf"{named} has no memory .*to_local\(\)"):
        Packing([torch.ones(4), tensor()])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(4),
        torch.empty(0),
        torch.ones(4)[2:],
        torch.nn.Parameter(torch.ones(4)),
        torch.ones(4).as_subclass(_Named),
        torch.ones(4, device="meta"),  # refused for its device
    ],
)
def test_a_tensor_with_memory_is_taken_as_it_is(tensor: torch.Tensor) -> None:
    assert with_memory(tensor) is tensor
    assert resolved(tensor) is tensor and not is_lazy(tensor)


def test_an_unwaited_result_is_the_tensor_inside() -> None:
    inner = torch.ones(4)
    assert with_memory(functional.AsyncCollectiveTensor(inner)).data_ptr() == inner.data_ptr()


@pytest.mark.parametrize(
    "lazy", [torch.ones(4, dtype=torch.complex64).conj(), torch._neg_view(torch.ones(4))]
)
def test_a_lazy_tensor_is_packed(lazy: torch.Tensor) -> None:
    packing = Packing([lazy])
    flat = packing.flat()
    assert not is_lazy(flat) and torch.equal(flat, lazy)
    packing.unpack(flat * 2j if lazy.is_complex() else flat * 2)
    assert is_lazy(lazy) and torch.equal(lazy, flat * (2j if lazy.is_complex() else 2))
