"""Counters of the bytes that this process has sent and received."""

from __future__ import annotations

from typing import Any

from reducer_client.horovod import context


def stats(timeout: float = 5.0) -> dict[str, Any]:
    """The counters of the global set, as ``reducer_client.Group.stats`` returns them.

    They do not include other process sets. Without reducers there are no lanes and all counters are
    0.

    Args:
        timeout: seconds within which each reducer must answer.
    """
    return context.current().sets.controller(0).group.stats(timeout)
