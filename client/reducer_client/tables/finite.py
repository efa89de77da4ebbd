"""Checks that gradients and their squares are finite, and that values are there."""

from __future__ import annotations

import numpy as np

from reducer.kernels import load
from reducer_client.tables.layout import Layout, Vector

LIMIT = 2.0**63  # magnitudes must be below

_kernels = load()


def is_within(values: Vector) -> bool:
    """Whether all values are finite and below LIMIT in magnitude."""
    return _kernels.within(values.size, values.data, LIMIT)


def name_bad_tensors(layout: Layout, flat: Vector) -> str:
    """The tensors with values beyond the limit, for the text of an error."""
    bad = [name for name, values in layout.views(flat).items() if not is_within(values.reshape(-1))]
    shown = ", ".join(map(repr, bad[:5]))
    return shown + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")


def has_blank_shard(layout: Layout, flat: Vector) -> bool:
    """Whether a shard is NaN throughout: such is a value before a table's first one."""
    suspects = np.flatnonzero(np.isnan(flat[:: layout.shard]))
    return any(bool(np.isnan(flat[layout.place(int(shard))]).all()) for shard in suspects)
