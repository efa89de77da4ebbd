"""Checks of the versions that callers give."""

from __future__ import annotations

from typing import Final

MOST: Final = (1 << 62) - 1  # far from the end of the field on the wire


def check_version(who: str, version: object) -> None:
    """Raises TypeError for no integer, ValueError for one that no table can have."""
    if isinstance(version, bool) or not isinstance(version, int):
        kind = type(version).__name__
        raise TypeError(f"{who}: version={version!r:.60} is a {kind}: expected an int from 0 on")
    if not 0 <= version <= MOST:
        raise ValueError(f"{who}: version={version!r:.60}: expected an integer from 0 to {MOST:,}")
