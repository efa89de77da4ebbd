"""How much is tested: a part at each commit, or everything, as in ``make nightly``.

``LONG_TESTS=1`` is the only switch: random tests draw more, and tests marked ``long`` run.
"""

from __future__ import annotations

import os

LONG = os.environ.get("LONG_TESTS", "0") != "0"


def draws(short: int, long: int) -> int:
    """The number of seeds, rounds or cases to run."""
    return long if LONG else short
