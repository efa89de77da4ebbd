"""The network of this process: that of a host in a lab."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

# The folder in which `ip netns` keeps a file for each namespace.
NAMES: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000  # linux/sched.h


def enter(name: str) -> None:
    """Let this thread, and threads and processes that it starts later, use a namespace's network.

    Raises OSError if there is no such namespace, or for lack of rights.
    """
    with (NAMES / name).open("rb") as file:
        _call("setns", file.fileno(), _CLONE_NEWNET)


@contextlib.contextmanager
def inside(name: str) -> Generator[None]:
    """Use a namespace's network within the block, as `enter` does."""
    with Path("/proc/thread-self/ns/net").open("rb") as before:
        enter(name)
        try:
            yield
        finally:
            _call("setns", before.fileno(), _CLONE_NEWNET)


def _call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[function](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
