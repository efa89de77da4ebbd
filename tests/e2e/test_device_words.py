"""Results for which only a device waits: real reducers and a device with a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from reducer_client import Group, ReducerError
from reducer_client.parts import DeviceWords
from tests.support.frameworks import needs_extra
from tests.support.groups import Groups
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

pytestmark = needs_extra("torch")

torch = pytest.importorskip("torch")

COUNT = 3_000_001  # three slices of float32
TURNS = 4


@pytest.fixture(scope="module")
def reducers() -> Iterator[Reducers]:
    with Reducers(2, lanes=2) as running:
        yield running


class Rank:
    """A rank with a device of its own. All its results are awaited by the device's stream."""

    def __init__(self, group: Group) -> None:
        from reducer_client.torch.staging.staging import Staging
        from tests.support.simulated_device import ThreadedDevice

        self.group = group
        self.device = ThreadedDevice(group.rank)
        self.staging = Staging(self.device)
        self.ends: list[Any] = []

    def start(self, method: str, source: Any, target: Any = None, **way: Any) -> Any:
        """Queue a call after all that has been queued."""
        from reducer_client.torch.staging.transfer import Way
        from reducer_client.torch.tensors.host import summable
        from reducer_client.torch.tensors.packing import Packing

        def submit(read: Any, write: Any, **call: Any) -> Any:
            array, dtype = summable(read)
            out = array if read is write else summable(write)[0]
            dtypes = {} if method == "all_gather" else {"dtype": dtype}
            if method == "all_gather":
                out = out.reshape(self.group.world_size, -1)
            return getattr(self.group, method)(array, key="k", out=out, **dtypes, **call)

        packing = Packing([source])
        into = packing if target is None else Packing([target])
        transfer = self.staging.start(
            packing, into, submit, self.ends.append, Way(by_stream=True, **way)
        )
        assert transfer.by_stream
        return transfer

    def queue(self, work: Any) -> None:
        self.device.queue(self.device.current_stream(), work)


@contextmanager
def ranks(world: int, reducers: Reducers, job: str, **options: Any) -> Iterator[list[Rank]]:
    with Groups(world, reducers.addresses, job, **options) as groups:
        found = [Rank(group) for group in groups.ranks]
        try:
            yield found
        finally:
            for rank in found:
                rank.device.close()


@pytest.mark.parametrize("carried", [None, torch.bfloat16])
def test_the_program_goes_on_and_its_stream_waits(
    reducers: Reducers, job: str, carried: Any
) -> None:
    """Each turn reads the result of the one before, without the host."""
    with ranks(2, reducers, job) as both:
        tensors = [torch.full((COUNT,), rank + 1.0) for rank in range(2)]
        for rank, tensor in zip(both, tensors, strict=True):
            for _ in range(TURNS):
                transfer = rank.start("all_reduce", tensor, sliced=True, carried=carried)
                transfer.wait()
                rank.queue(lambda tensor=tensor: tensor.add_(1.0))
            assert not rank.ends or rank is both[1]  # rank 0 did not wait for rank 1
        for rank, tensor in zip(both, tensors, strict=True):
            rank.device.synchronize()
            value = 3.0
            for _ in range(TURNS - 1):
                value = 2 * (value + 1)
            assert bool((tensor == value + 1).all())
            wait_until(lambda rank=rank: len(rank.ends) == TURNS, 30)
            assert all(transfer.done and not transfer.exception() for transfer in rank.ends)


def test_shards_are_summed_and_gathered(reducers: Reducers, job: str) -> None:
    with ranks(2, reducers, job) as both:
        shards = [torch.zeros(COUNT) for _ in both]
        wholes = [torch.arange(2.0 * COUNT) for _ in both]
        for rank, whole, shard in zip(both, wholes, shards, strict=True):
            rank.start("reduce_scatter", whole, shard).wait()
            rank.start("all_gather", shard, whole).wait()
        for rank, whole in zip(both, wholes, strict=True):
            rank.device.synchronize()
            assert torch.equal(whole, 2 * torch.arange(2.0 * COUNT))


def test_no_step_with_a_failed_call_leaves_a_finite_parameter(reducers: Reducers, job: str) -> None:
    """The host has gone on to the optimizer when the call fails."""
    with pytest.raises(ReducerError), ranks(2, reducers, job) as both:
        parameter, gradient = torch.ones(COUNT), torch.ones(COUNT)
        rank = both[0]
        transfer = rank.start("all_reduce", gradient, sliced=True)
        transfer.wait()
        rank.queue(lambda: parameter.sub_(gradient, alpha=0.1))
        both[1].group.abort("rank 1 gives up, as the test wants")
        rank.device.synchronize()
        assert bool(parameter.isnan().all())
        wait_until(lambda: bool(rank.ends), 30)
        assert "as the test wants" in str(transfer.exception())
        with pytest.raises(ReducerError):
            transfer.wait()
        after = torch.ones(COUNT)
        with pytest.raises(ReducerError):
            rank.start("all_reduce", after, sliced=True)
        rank.device.synchronize()
        assert bool(after.isnan().all())
        raise transfer.exception()


def test_a_killed_reducer_costs_no_bit(job: str) -> None:
    with Reducers(2) as running, ranks(2, running, job) as both:
        tensors = [torch.full((COUNT,), rank + 1.0) for rank in range(2)]
        both[0].start("all_reduce", tensors[0], sliced=True).wait()
        running.kill(1)
        both[1].start("all_reduce", tensors[1], sliced=True).wait()
        for rank, tensor in zip(both, tensors, strict=True):
            rank.device.synchronize()
            assert bool((tensor == 3.0).all())


def test_a_group_ends_while_its_device_stands_still(reducers: Reducers, job: str) -> None:
    with Groups(1, reducers.addresses, job) as groups:
        array = np.zeros(COUNT, np.float32)
        slices, gate = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
        work = groups.ranks[0].all_reduce(
            array, out=array, words=DeviceWords(slices, COUNT, gate), key="k"
        )
        assert not work.done
        groups.ranks[0].abort()
        assert work.done
        assert gate[0] == DeviceWords.FAILED


def test_words_that_no_device_could_use_are_refused(solo: Group) -> None:
    array, word = np.zeros(100, np.float32), np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="expected 4 aligned bytes"):
        solo.all_reduce(array, out=array, words=DeviceWords(np.zeros(2, np.uint32), 1, word))
    with pytest.raises(ValueError, match="a slice of 0 elements"):
        solo.all_reduce(array, out=array, words=DeviceWords(word, 0, word))
    with pytest.raises(ValueError, match="parts are for all_reduce"):
        solo.all_gather(array, words=DeviceWords(word, 50, word))
