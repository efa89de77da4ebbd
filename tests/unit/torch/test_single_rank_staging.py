"""How a process group of one rank stages the tensors of a device."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist

from reducer_client.single_rank import SingleRankGroup
from reducer_client.torch.backend.reduction import FlatReduction
from reducer_client.torch.calls.group_calls import GroupCalls
from reducer_client.torch.staging.transfer import Way
from reducer_client.torch.tensors.packing import Packing


@pytest.mark.parametrize("wire_dtype", [None, "bfloat16"])
def test_a_single_rank_gets_whole_values_as_they_are(wire_dtype: Any) -> None:
    """It copies them at once: of an array that fills up, it would copy what is not there."""
    calls = GroupCalls(SingleRankGroup(), "alone")
    try:
        reduction = FlatReduction(calls, wire_dtype)
        op = dist.AllreduceOptions().reduceOp
        assert reduction._way(Packing([torch.zeros(3_000_000)]), op) == Way()
    finally:
        calls.close()
