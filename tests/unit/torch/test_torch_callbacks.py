"""Threads that run callbacks of futures compute the same bits as the program's thread."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed

from reducer_client.torch.calls.callbacks import CallbackThreads


@pytest.mark.parametrize("wanted", [1, 2])
def test_callbacks_have_the_threads_that_the_program_has_set(wanted: int) -> None:
    """A new thread computes with all cores, so at least one of the two numbers is another."""
    # The last bits of this product are not the same for one thread and for two.
    random = torch.Generator().manual_seed(1)
    left, right = (torch.randn(1, n, 2, generator=random) for n in (10, 512))
    products = []
    done = threading.Event()

    def multiply() -> None:
        products.append(torch.bmm(left, right.transpose(1, 2)))
        done.set()

    before = torch.get_num_threads()
    torch.set_num_threads(wanted)
    threads = CallbackThreads()
    try:
        multiply()
        done.clear()
        threads.submit(multiply)
        assert done.wait(30)
    finally:
        threads.stop()
        torch.set_num_threads(before)
    assert torch.equal(*products)
