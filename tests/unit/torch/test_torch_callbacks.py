"""Threads that run callbacks of futures compute the same bits as the program's thread."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed

from reducer_client.torch.calls.callbacks import CallbackThreads


def test_callbacks_have_the_threads_that_the_program_has_set() -> None:
    # The last bits of this product depend on the number of threads.
    random = torch.Generator().manual_seed(1)
    left, right = (torch.randn(1, n, 2, generator=random) for n in (10, 512))
    products = []
    done = threading.Event()

    def multiply() -> None:
        products.append(torch.bmm(left, right.transpose(1, 2)))
        done.set()

    before = torch.get_num_threads()
    torch.set_num_threads(1)
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
