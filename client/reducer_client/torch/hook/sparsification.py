"""The largest entries of a vector as (index, value) pairs: selection, and layout in bytes.

The pairs of a rank are ``count`` indices followed by ``count`` values, as flat bytes, so that a
collective can move them without knowing their dtypes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Entries of the sample that gives the threshold in larger vectors.
_SAMPLE = 1 << 16
# The threshold aims at this many candidates per wanted entry, plus _MORE entries of the sample. Too
# few candidates cost a second pass.
_MARGIN = 1.25
_MORE = 64
_ALIGNMENT = 8


def largest(vector: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the ``count`` entries of greatest magnitude. NaN is above Inf, Inf above numbers.

    The result is exact; among equal magnitudes at the limit the choice is arbitrary. In large
    vectors on the CPU, only entries above a threshold are candidates, which takes an eighth of the
    time of ``torch.topk``. On a device the host would have to wait for the number of candidates.
    """
    magnitudes = vector.abs()
    if vector.device.type != "cpu" or len(vector) <= _SAMPLE:
        return magnitudes.topk(count, sorted=False).indices
    candidates = (~(magnitudes < _threshold(magnitudes, count))).nonzero().view(-1)
    if len(candidates) < count:
        return magnitudes.topk(count, sorted=False).indices
    return candidates[magnitudes[candidates].topk(count, sorted=False).indices]


def _threshold(magnitudes: torch.Tensor, count: int) -> torch.Tensor:
    sample = magnitudes[:: -(-len(magnitudes) // _SAMPLE)]
    share = _MARGIN * count / len(magnitudes)
    kept = min(len(sample), int(share * len(sample)) + _MORE)
    return sample.topk(kept, sorted=False).values.min()


@dataclass(frozen=True)
class Pairs:
    """The layout of the pairs of one vector, equal on all ranks."""

    count: int
    index_dtype: torch.dtype
    value_dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's pairs, padded so that the next rank's indices are aligned."""
        used = self.count * (self.index_dtype.itemsize + self.value_dtype.itemsize)
        return -(-used // _ALIGNMENT) * _ALIGNMENT

    def write(self, row: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> None:
        """Write indices and values into a row of ``nbytes`` uint8."""
        row.zero_()
        into_indices, into_values = self.read(row)
        into_indices.copy_(indices)
        into_values.copy_(values)

    def read(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The indices and values of a row, as views."""
        split = self.count * self.index_dtype.itemsize
        end = split + self.count * self.value_dtype.itemsize
        return row[:split].view(self.index_dtype), row[split:end].view(self.value_dtype)


def narrow(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values in a narrower dtype. Finite values beyond its range become its largest number."""
    limit = torch.finfo(dtype).max
    return torch.where(values.isfinite(), values.clamp(-limit, limit), values).to(dtype)
