"""Bytes that this process has sent and received, for programs that report them."""

from __future__ import annotations

from typing import Any

from reducer_client.horovod import context


def stats(timeout: float = 5.0) -> dict[str, Any]:
    """The counters of ``reducer_client.Group.stats``, of the global set; process sets have theirs.

    A program that is run without reducers has no lanes and has moved no bytes.

    Args:
        timeout: seconds in which each reducer must answer.
    """
    return context.current().sets.controller(0).group.stats(timeout)
