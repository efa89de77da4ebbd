"""Calls and options that the engine refuses: the error names what came and what is expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer.wire.codes import Collective, DType, ReduceOp
from tests.support.one_worker import Worker, joined

FOUR = np.ones(4, np.float32)
CALL: dict[str, Any] = {
    "collective": Collective.ALL_REDUCE, "op": ReduceOp.SUM, "dtype": DType.FLOAT32, "wide": False,
    "key": "key", "root": 0, "count": 4, "source": FOUR, "target": np.empty_like(FOUR),
}  # fmt: skip
BLOCKS = {"dtype": DType.INT8_BLOCKS, "wide": True}
BROADCAST = {"collective": Collective.BROADCAST, "op": ReduceOp.COPY, "root": 1}
BARRIER = {
    "collective": Collective.BARRIER, "op": ReduceOp.NONE, "dtype": DType.UINT8, "count": 0,
    "target": None,
}  # fmt: skip


def test_the_call_is_valid_unless_it_is_changed() -> None:
    joined().state.submit(**CALL)


def test_blocks_are_valid() -> None:
    joined().state.submit(**{**CALL, **BLOCKS, "residual": np.zeros(4, np.float32)})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"collective": 9}, "unknown collective"),
        ({"dtype": 99}, "unknown dtype 99"),
        (
            {"wide": True},
            "a float32 tensor can be sent as float16, bfloat16 or blocks, got dtype 1",
        ),
        ({**BLOCKS, "wide": False}, "dtype 13 holds float32: expected wide"),
        ({**BLOCKS, "op": ReduceOp.MAX}, "dtype 13 is for op 1 and 2, sum and mean; got 4"),
        (
            {**BLOCKS, **BROADCAST},
            "dtype 13 is for all_reduce and reduce_scatter, got collective 2",
        ),
        (
            {**BLOCKS, "residual": np.zeros(5, np.float32)},
            "the residual has 20 bytes, expected 16, as the source",
        ),
        ({"residual": np.zeros(4, np.float32)}, "a residual is for blocks, got dtype 1"),
        ({"root": 1}, "root 1 is not a rank of this broadcast"),
        ({**BROADCAST, "root": 2}, "root 2 is not a rank of this broadcast"),
        ({"op": ReduceOp.BAND}, "op 7 is bitwise: expected an integer dtype, got dtype 1"),
        ({"op": ReduceOp.COPY}, "op 6 does not fit collective 1"),
        ({**BARRIER, "source": None, "count": 1}, "a barrier is uint8, op 0, count 0"),
        ({"key": ""}, "expected a key of 1 to 512 bytes of UTF-8, got 0 bytes"),
        ({"key": "é" * 257}, "expected a key of 1 to 512 bytes of UTF-8, got 514 bytes"),
        ({"count": 2**50 + 1}, "1125899906842625 elements: expected at most 2^50"),
        (BARRIER, "rank 0 gave a source: a barrier takes none"),
        (BROADCAST, "rank 0 gave a source: only root 1 of this broadcast gives one"),
        ({"source": None}, "this call needs a source"),
        ({"count": 5}, "the source has 16 bytes, expected 5 elements of 4"),
    ],
)
def test_a_call_that_is_refused_says_why(changes: dict[str, Any], text: str) -> None:
    worker = joined()
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared
        worker.state.submit(**{**CALL, **changes})
    assert str(caught.value) == text
    assert worker.state.error is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"reducers": 0}, "no reducer address: set REDUCER_ADDRS"),
        ({"world_size": 0}, "world size must be 1 to 8192, got 0"),
        ({"world_size": 8193}, "world size must be 1 to 8192, got 8193"),
        ({"rank": 2}, "rank 2 is outside world size 2"),
    ],
)
def test_options_that_are_refused_say_why(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared
        Worker(**options)
    assert str(caught.value) == text
