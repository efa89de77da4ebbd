"""Child processes of the tools: they end with their parent, and their exit codes as text."""

from __future__ import annotations

import signal

from reducer.parent import die_with_parent


def stay_with(parent: int) -> None:
    """Make this process end when its parent ends in any way, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)


def describe_exit(code: int | None) -> str:
    """How a process ended too early, as the verb phrase after "the worker"."""
    if code is None:
        return "closed its pipe but did not end"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code} before it was done"
