"""How much the random tests draw: a little at each commit, all of it in ``make nightly``.

``LONG_TESTS=1`` is the one switch.
"""

from __future__ import annotations

import os

LONG = os.environ.get("LONG_TESTS", "0") != "0"


def draws(short: int, long: int) -> int:
    """Seeds, rounds or cases."""
    return long if LONG else short
