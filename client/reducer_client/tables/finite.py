"""Checks that gradients and their squares are finite."""

from __future__ import annotations

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
