"""Namespaces of this process: the network of a host in a lab, and a place for the lab's names."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

from reducer_tools.netlab.commands import LabError

# The folder in which `ip netns` keeps a file for each namespace.
NAMES: Final = Path("/run/netns")
_CLONE_NEWNS: Final = 0x00020000  # linux/sched.h
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_MS_REC: Final = 0x4000  # linux/mount.h
_MS_PRIVATE: Final = 0x40000


def isolate() -> None:
    """Give this process and its children namespaces of their own, for labs that they build.

    The process gets an empty ``/run``, where `ip netns` keeps names, and a network without devices.
    Its labs are invisible to other processes, change no setting of the machine, and vanish with the
    last process in them, even after SIGKILL. A process that is not root also gets a user namespace,
    in which it is root; it must have one thread only.

    Raises:
        LabError: the kernel does not allow this.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWNS | _CLONE_NEWNET | (_CLONE_NEWUSER if user else 0))
        if user:
            Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")
        _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
        _mount("lab", "/run", "tmpfs", 0)
    except OSError as error:
        raise LabError(f"no namespaces for a lab: {error.strerror}") from None


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


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    names = (None if name is None else name.encode() for name in (source, target, kind))
    _call("mount", *names, ctypes.c_ulong(flags), None)


def _call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[function](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
