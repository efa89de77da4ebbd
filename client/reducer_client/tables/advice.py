"""Warnings about optimizers that are known to fail in a mode."""

from __future__ import annotations

from reducer.optimizers import SGD, Optimizer
from reducer_client.tables.modes import Async, Mode


def find_advice(optimizer: Optimizer, mode: Mode) -> str | None:
    """A warning for the program that makes a table, or None."""
    if isinstance(mode, Async) and isinstance(optimizer, SGD) and optimizer.momentum:
        return (
            f"momentum {optimizer.momentum:g} in the mode async: the pushes of n workers work as "
            "more momentum, and training diverges at the learning rate of synchronous training. "
            "Divide the learning rate by the number of workers, or take momentum 0"
        )
    return None
