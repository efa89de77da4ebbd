"""How much is tested: what fits into a commit, or all of it, as in ``make nightly``.

``LONG_TESTS=1`` is the one switch: random tests draw more, and those that are marked ``long`` run.
"""

from __future__ import annotations

import os

LONG = os.environ.get("LONG_TESTS", "0") != "0"


def draws(short: int, long: int) -> int:
    """Seeds, rounds or cases."""
    return long if LONG else short
