"""Calls of a process group in flight."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch._C._distributed_c10d import AllreduceOptions

from reducer_client.single_rank import SingleRankGroup
from reducer_client.torch.calls.group_calls import GroupCalls
from reducer_client.torch.calls.works import Handle
from reducer_client.torch.tensors.packing import Packing


def test_nobody_waits_for_a_call_that_was_refused() -> None:
    calls = GroupCalls(SingleRankGroup(), "0")
    packing = Packing([torch.ones(3)])

    def refuse(*args: object, **call: Any) -> Handle:
        raise TypeError("not so")

    with pytest.raises(TypeError, match="not so"):
        calls.start(refuse, packing, packing, [], AllreduceOptions())
    assert calls.pending() == []
    calls.close()
