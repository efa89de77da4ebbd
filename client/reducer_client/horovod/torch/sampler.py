"""Assigns the samples of a data set to ranks, and resumes in the middle of an epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from itertools import cycle, islice
from typing import Any

import torch

from reducer_client.horovod.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides the unprocessed samples of an epoch among the ranks.

    ``TorchState`` saves the progress. Call ``record_batch`` after each batch, and ``set_epoch`` at
    the end of each epoch. Every rank gets equally many samples. If the samples do not divide
    evenly, the first samples are repeated.

    Args:
        dataset: a data set whose length does not change.
        shuffle: whether each epoch has a new order, which is the same on all ranks.
        seed: the seed of that order; equal on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. Call this at the end of the epoch before."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every rank has processed a batch of ``batch_size`` samples.

        ``batch_idx`` is not used.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """The progress in the epoch, which any rank can load."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the progress that ``state_dict`` returned."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the unprocessed samples of the epoch among the present ranks."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        total = self.num_samples * self.num_replicas
        even = islice(cycle(self.remaining_indices), total)
        return islice(even, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples
