"""Processes that another process of ours starts: how they end with it, and how they ended."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def stay_with(parent: int) -> None:
    """End with the parent however it ends; Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def describe_exit(code: int | None) -> str:
    """How a process ended before it was done, for "the worker ..."."""
    if code is None:
        return "closed its pipe but did not end"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code} before it was done"
