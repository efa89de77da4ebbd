"""Gradients that a table may take: finite, with finite squares."""

from __future__ import annotations

import numpy as np

from reducer_client.tables.layout import Layout, Vector

LIMIT = np.float32(2.0**63)  # of a magnitude, excluded
_BLOCK = 1 << 16  # elements: 256 KiB, which stays in the L2 cache for the second look


def is_within(values: Vector) -> bool:
    """Whether all values are finite and below LIMIT in magnitude."""
    for begin in range(0, values.size, _BLOCK):
        block = values[begin : begin + _BLOCK]
        if not (block.max() < LIMIT and block.min() > -LIMIT):  # false with a NaN
            return False
    return True


def name_bad_tensors(layout: Layout, flat: Vector) -> str:
    """The tensors with values beyond the limit, for the text of an error."""
    bad = [name for name, values in layout.views(flat).items() if not is_within(values.reshape(-1))]
    shown = ", ".join(map(repr, bad[:5]))
    return shown + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
