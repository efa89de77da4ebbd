"""The largest entries of a vector as (index, value) pairs: selection, bytes, sum.

One rank's pairs are ``count`` indices and then ``count`` values as flat bytes, so that a collective
that knows neither can move them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Above this size a sample of so many entries finds the threshold first.
_SAMPLE = 1 << 16
# Candidates for each entry that is wanted, and some more: a sample that says too few costs a pass.
_MARGIN = 1.25
_MORE = 64
_ALIGNMENT = 8


def largest(vector: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the ``count`` entries of the greatest magnitude, NaN before Inf before numbers.

    Exact, but for which of equal magnitudes at the limit are taken. In large vectors on the CPU
    only those above a threshold are candidates, in an eighth of ``torch.topk``'s time; on a device
    the host would have to wait for their number.
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
    """How the pairs of one vector are written: the same on all ranks."""

    count: int
    index_dtype: torch.dtype
    value_dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one rank, with padding that aligns the next rank's indices."""
        used = self.count * (self.index_dtype.itemsize + self.value_dtype.itemsize)
        return -(-used // _ALIGNMENT) * _ALIGNMENT

    def write(self, row: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> None:
        """Into ``nbytes`` of uint8."""
        row.zero_()
        into_indices, into_values = self.read(row)
        into_indices.copy_(indices)
        into_values.copy_(values)

    def read(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices and values of what ``write`` wrote, as views."""
        split = self.count * self.index_dtype.itemsize
        end = split + self.count * self.value_dtype.itemsize
        return row[:split].view(self.index_dtype), row[split:end].view(self.value_dtype)


def narrow(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In a narrower dtype; finite values beyond its range become its largest, not Inf."""
    limit = torch.finfo(dtype).max
    return torch.where(values.isfinite(), values.clamp(-limit, limit), values).to(dtype)
