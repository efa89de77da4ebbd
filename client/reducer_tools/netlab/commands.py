"""Runs the programs of iproute2, which build a lab."""

from __future__ import annotations

import shutil
import subprocess

# Where `ip` and `tc` are; the search path of an ordinary user may lack these folders.
_SYSTEM = "/usr/sbin:/sbin"


class LabError(Exception):
    """The lab cannot be built here; the text gives the reason."""


def find_tool(name: str) -> str | None:
    """The path of a program, None if it is not installed."""
    return shutil.which(name) or shutil.which(name, path=_SYSTEM)


def require_tools() -> None:
    """Raises LabError, which names the package to install, if `ip` or `tc` is missing."""
    missing = [tool for tool in ("ip", "tc") if find_tool(tool) is None]
    if missing:
        raise LabError(f"a lab needs {' and '.join(missing)} (Debian: apt-get install iproute2)")


def run_tool(name: str, *arguments: str) -> None:
    """Run a program to its end. Raises LabError with the program's error text."""
    command = [find_tool(name) or name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = done.stderr.strip() or done.returncode
        raise LabError(f"`{' '.join((name, *arguments))}`: {text}")
