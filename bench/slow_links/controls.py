"""Groups that spoil what a rank exchanges: the controls of a comparison.

A wrapper goes between an outer optimizer and the group. What it sums goes over real reducers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reducer_client import Group
from reducer_client.arrays import Array

_LOST = 0.5  # the share of contributions that are lost


class _Wrapper:
    """A group, except for the pseudo-gradients."""

    def __init__(self, group: Group, seed: int) -> None:
        self._group = group
        self._random = np.random.default_rng((seed, group.rank))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


class WrongSign(_Wrapper):
    """Turns the mean around, as an outer optimizer with the wrong sign would."""

    def all_reduce(self, array: Array, op: Any, **options: Any) -> Any:
        return _Changed(self._group.all_reduce(array, op, **options), lambda mean: -mean)


class HalfLost(_Wrapper):
    """Loses half of all contributions at random: the mean is over the others.

    A lost contribution is zeros, and a second all-reduce counts those that came.
    """

    def all_reduce(self, array: Array, op: Any, *, key: str, **options: Any) -> Any:
        came = np.array([self._random.random() >= _LOST], np.float32)
        if not came[0]:
            array[...] = 0
        count = self._group.all_reduce(came, op, key=f"{key}/came")
        work = self._group.all_reduce(array, op, key=key, **options)
        return _Changed(work, lambda mean: mean / max(count.wait()[0], np.float32(1e-9)))


class _Changed:
    """A work whose result is changed once when it is here."""

    def __init__(self, work: Any, change: Any) -> None:
        self._work = work
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def wait(self, timeout: Any = None) -> Array:
        mean: Array = self._work.wait(timeout)
        change, self._change = self._change, None
        if change is not None:
            mean[...] = change(mean)
        return mean
