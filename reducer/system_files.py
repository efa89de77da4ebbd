"""Reads the small text files of /proc and /sys."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str:
    """The text without white space at its ends; "" if the file cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
