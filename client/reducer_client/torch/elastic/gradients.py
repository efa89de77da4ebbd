"""The sums of a model's gradients: buckets that start during backward(), in one order on all ranks.

DDP's own buckets cannot be used: DDP rebuilds them after the first step, so a worker that joins
would have others, and DDP needs a process group of fixed ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch

from reducer_client.arrays import Array
from reducer_client.dtypes import WireDtype
from reducer_client.group import Group, wait_all_or_end
from reducer_client.torch.elastic.bucket import Bucket, sum_dtype
from reducer_client.torch.staging.staging import Stagings
from reducer_client.torch.tensors.partition import partition
from reducer_client.work import Work

_COUNTS = "elastic/samples"


class Gradients:
    """Sums gradients over the workers, and divides each part of a sum for the ranks that are in it.

    Args:
        keeps: whether a step is summed again until all its sums hold the same ranks.
        by_samples: whether the mean is over all samples. Else it is over the ranks, as in DDP.
    """

    def __init__(
        self,
        group: Group,
        parameters: Sequence[torch.nn.Parameter],
        *,
        bucket_bytes: int,
        keeps: bool,
        by_samples: bool,
        wire_dtype: WireDtype | None,
    ) -> None:
        self._group = group
        self._keeps = keeps
        self._by_samples = by_samples
        self._lock = threading.RLock()  # autograd has a thread for each device
        stagings = Stagings()
        self.buckets = [
            Bucket(index, part, keeps=keeps, wire_dtype=wire_dtype,
                   staging=stagings.of(part[0].device))
            for index, part in enumerate(partition(parameters, bucket_bytes, _sum_dtype))
        ]  # fmt: skip
        self._samples: int | None = None
        self._counts: Work[Array] | None = None
        self._next = 0  # the first bucket that has not started
        self.redone = 0  # steps that were summed again
        self.is_paused = False  # backward() accumulates gradients and sends none
        self._hooks: list[Any] = [
            cast(Any, parameter).register_post_accumulate_grad_hook(self._hook(bucket, place))
            for bucket in self.buckets
            for place, parameter in enumerate(bucket.parameters)
        ]

    @property
    def samples(self) -> int | None:
        """The samples of this rank in this step; None if their number is not known yet."""
        return self._samples

    def remove(self) -> None:
        """Take no more gradients."""
        for hook in self._hooks:
            hook.remove()

    def announce(self, samples: int) -> None:
        """Tell all ranks how many samples this rank's next contributions have.

        This rank sends no bucket before it has the counts of all ranks. Thus the count of every
        rank in a bucket's sum is known, even if that rank is lost a moment later.
        """
        with self._lock:
            if self._samples is not None:
                raise RuntimeError(
                    f"the step has {self._samples} samples already: call step() before the next"
                )
            if samples < 0:
                raise ValueError(f"{samples} samples: expected a number from 0 on")
            self._samples = samples
            if self._by_samples:
                counts = np.zeros(self._group.world_size, np.int64)
                counts[self._group.rank] = samples
                self._counts = self._group.all_reduce(counts, key=_COUNTS, out=counts)

    def reduce(self) -> tuple[frozenset[int], bool]:
        """Make the gradients the means over all ranks. Waits for all buckets.

        Returns the ranks that are in all sums, and whether there is any sample in the sums. Both
        are equal on all ranks, as are the gradients.
        """
        if self._samples is None:
            self.announce(0)
        for bucket in self.buckets:
            for place in range(len(bucket.parameters)):
                if not bucket.started and not bucket.has(place):
                    bucket.fill(place, self._weight())
        self._start_full()
        sums = [bucket.sum for bucket in self.buckets]
        self._wait(sums)
        generation = 0
        # The results and the ledgers are equal on all ranks, so all decide alike to sum again. A
        # rank decides only when it holds all of the step.
        while self._keeps and len(self._sets()) > 1:
            generation += 1
            self._wait([bucket.start(self._group, generation) for bucket in self.buckets])
        self.redone += generation > 0
        sets = self._sets()
        for bucket in self.buckets:
            bucket.finish(self._divisor)
        has_samples = any(self._divisor(members) for members in sets)
        self._samples, self._counts, self._next = None, None, 0
        return frozenset.intersection(*(frozenset(members) for members in sets)), has_samples

    def _hook(self, bucket: Bucket, place: int) -> Callable[[torch.Tensor], None]:
        def ready(_: torch.Tensor) -> None:
            if self.is_paused:
                return
            with self._lock:
                if bucket.has(place):
                    raise RuntimeError(
                        "a second backward() in one step: call step() after each backward(), and "
                        "all but the last backward() of a step within no_sync()"
                    )
                bucket.fill(place, self._weight())
                self._start_full()

        return ready

    def _weight(self) -> int:
        """The factor of this rank's gradients."""
        if not self._by_samples:
            return 1
        if self._samples is None:
            raise RuntimeError(
                "the gradients are averaged over all samples, and the number of this rank's "
                "samples is unknown: iterate over shards(), set `samples` before backward(), or "
                "give by_samples=False"
            )
        return self._samples

    def _start_full(self) -> None:
        """Start the full buckets up to the first that is not full: the order of all ranks."""
        while self._next < len(self.buckets) and self.buckets[self._next].is_full:
            if self._counts is not None:
                self._wait([self._counts])
            self.buckets[self._next].start(self._group)
            self._next += 1

    def _wait(self, works: Sequence[Any]) -> None:
        wait_all_or_end(self._group, lambda: works)

    def _sets(self) -> set[tuple[int, ...]]:
        """The sets of ranks whose contributions the sums of this step hold."""
        return {entry.members for bucket in self.buckets for entry in bucket.ledger}

    def _divisor(self, members: tuple[int, ...]) -> int:
        if self._counts is None:
            return len(members)
        counts = self._counts.wait()
        return sum(int(counts[rank]) for rank in members)


def _sum_dtype(parameter: torch.nn.Parameter) -> torch.dtype:
    return sum_dtype(parameter.dtype)
