"""State dicts as plain values and arrays, and back."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import msgpack
import numpy as np
import pytest

from tests.support.frameworks import needs_extra

pytestmark = needs_extra("torch")


def travel(value: Any) -> tuple[Any, set[str]]:
    """The value after its travel, and the names of the arrays that travel beside it."""
    from reducer_client.torch.elastic.plain_values import flatten, restore

    arrays: dict[str, Any] = {}
    packed = msgpack.packb(flatten(value, "x", arrays))
    return restore(msgpack.unpackb(packed), arrays), set(arrays)


@pytest.mark.parametrize(
    "value",
    [
        {"betas": (0.9, 0.999), "rates": [1e-3], "step": 7, "name": None, "on": True, 0: "zero"},
        {"milestones": Counter({30: 1}), "bytes": b"\0\1", "nested": {"a": [{}, ()]}},
    ],
)
def test_plain_values_keep_their_types(value: Any) -> None:
    back, arrays = travel(value)
    assert back == value and not arrays
    assert [type(v) for v in back.values()] == [type(v) for v in value.values()]


def test_tensors_keep_dtype_shape_and_bits() -> None:
    import torch

    value = OrderedDict(
        step=torch.tensor(3.0),
        large=torch.arange(99, dtype=torch.float64).view(3, 33),
        strided=torch.arange(100.0).view(4, 25).t(),
        bfloat16=torch.linspace(0, 1, 77).to(torch.bfloat16),
        small=torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
        flags=torch.tensor([True, False]),
        empty=torch.empty(0, 3),
    )
    back, arrays = travel(value)
    assert arrays == {"x.large", "x.strided", "x.bfloat16"}, "small tensors are no arrays"
    for name, tensor in value.items():
        assert back[name].dtype is tensor.dtype and back[name].shape == tensor.shape, name
        assert torch.equal(back[name].nan_to_num(), tensor.nan_to_num()), name


def test_numpy_arrays_and_numbers() -> None:
    back, arrays = travel({"array": np.arange(3), "number": np.float32(0.5)})
    assert back["array"].tolist() == [0, 1, 2] and back["number"] == 0.5 and arrays == {"x.array"}


def test_other_values_are_refused_by_their_place() -> None:
    with pytest.raises(TypeError, match=r"x\.state\.0 is a object: a worker that joins"):
        travel({"state": [object()]})
