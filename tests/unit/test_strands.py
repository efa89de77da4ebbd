"""Names of calls: what callbacks call is told from what the program calls."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from reducer_client.torch.strands import MainStrand, entered, is_of_callback


def test_calls_of_callbacks_are_told_apart() -> None:
    strand = MainStrand("0")
    key, of_callback = strand.next_call("cpu")
    assert not is_of_callback(key)
    with entered(of_callback):
        inner, deeper = strand.next_call("cpu")
        assert is_of_callback(inner)
        with entered(deeper):
            assert is_of_callback(strand.next_call("cpu")[0])
    assert not is_of_callback(strand.next_call("cpu")[0])
