"""Deals the samples of a data set to workers that come and go.

All ranks hold the same small state, and deal alike: to the ranks whose contributions were in the
previous step, in the order of ranks. A slice is done when its rank is in the sums of the slice's
step. The slices of lost ranks are dealt again, so each sample counts once in an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from reducer_client.arrays import Array

_NONE = np.empty(0, np.int64)


class Shards:
    """The samples of this rank, step by step. `Elastic.shards` makes this object.

    Iteration yields a list of indices for each step, and ends with the epoch. The list is empty if
    others have the last samples: such a rank skips forward and backward, and calls
    ``Elastic.step()`` like the others. A worker that joins begins in the middle of an epoch.

    Args:
        rank: gives this worker's rank.
        announce: called with the number of samples of this rank before a step.

    Attributes:
        epoch: epochs that are complete.
    """

    def __init__(
        self,
        size: int,
        batch: int,
        seed: int,
        rank: Callable[[], int],
        announce: Callable[[int], None],
    ) -> None:
        if size < 1 or batch < 1:
            raise ValueError(f"{size} samples in batches of {batch}: expected numbers from 1 on")
        self._size, self._batch, self._seed = size, batch, seed
        self._rank = rank
        self._announce = announce
        self._members: list[int] = [0]
        self._dealt: dict[int, Array] = {}
        self._begin(0)

    @property
    def remaining(self) -> int:
        """The samples of this epoch that are not done."""
        return len(self._left) + self._size - self._position

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.epoch
        while self.epoch == epoch:
            if self._dealt:
                raise RuntimeError("the next samples were asked for before the step was ended: "
                                   "call Elastic.step() once for each list of samples")  # fmt: skip
            self._dealt = self._deal()
            mine: list[int] = self._dealt.get(self._rank(), _NONE).tolist()
            self._announce(len(mine))
            yield mine

    def state_dict(self) -> dict[str, Any]:
        """Which samples of this epoch are done, as plain values."""
        return {
            "size": self._size,
            "batch": self._batch,
            "seed": self._seed,
            "epoch": self.epoch,
            "position": self._position,
            "left": self._left.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from this state. All ranks must load the same state.

        Raises ValueError if the state is of other data, batches or seed.
        """
        own = {"size": self._size, "batch": self._batch, "seed": self._seed}
        for name, value in own.items():
            if state[name] != value:
                raise ValueError(f"shards of {name}={value}, but the job has {name}={state[name]}")
        self._begin(int(state["epoch"]))
        self._position = int(state["position"])
        self._left = np.array(state["left"], np.int64)

    def deal_to(self, members: Collection[int]) -> None:
        """Deal to these ranks from now on. All ranks must give the same members."""
        self._members = sorted(members)

    def end_step(self, members: Collection[int]) -> None:
        """End the step. Its sums hold the contributions of these ranks.

        The samples of other ranks are dealt again.
        """
        if self._dealt:
            lost = [part for rank, part in self._dealt.items() if rank not in members]
            self._left = np.concatenate([*lost, self._left])
            self._dealt = {}
            if not self.remaining:
                self._begin(self.epoch + 1)
        self.deal_to(members)

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._position = 0
        self._left = _NONE
        # Only the streams of NumPy's bit generators are the same in every release of NumPy.
        keys = np.random.PCG64([self._seed, epoch]).random_raw(self._size)
        self._order = np.argsort(keys, kind="stable")

    def _deal(self) -> dict[int, Array]:
        """The samples of each rank in the next step. The last samples are divided evenly."""
        count = min(self.remaining, self._batch * len(self._members))
        again, self._left = self._left[:count], self._left[count:]
        until = self._position + count - len(again)
        new, self._position = self._order[self._position : until], until
        parts = np.array_split(np.concatenate([again, new]), len(self._members))
        return dict(zip(self._members, parts, strict=True))
