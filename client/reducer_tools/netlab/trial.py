"""Tries whether this machine lets this user build a lab."""

from __future__ import annotations

import subprocess
import sys

from reducer_tools.netlab.commands import LabError, require_tools
from reducer_tools.netlab.isolation import isolate
from reducer_tools.netlab.lab import Lab
from reducer_tools.netlab.nic import Nic


def find_obstacle() -> str:
    """Why an isolated process cannot build a lab here; "" if it can.

    Another process builds a lab of one host: no rule says what a kernel, a container or a security
    module allows, and some of them allow the namespaces but no device in them.
    """
    try:
        require_tools()
    except LabError as error:
        return str(error)
    command = [sys.executable, "-m", "reducer_tools.netlab"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"


def main() -> None:
    try:
        isolate()
        with Lab({"host": Nic("1gbit")}, congestion=None):
            pass
    except LabError as error:
        sys.exit(str(error))
