"""Compiled modules can neither be patched nor be watched: run their sources instead."""

from __future__ import annotations

import sys


def run_interpreted() -> None:
    """Let an editable install find the sources of wire and core; call it before they are imported.

    A plain checkout is interpreted anyway.
    """
    for finder in sys.meta_path:
        compiled = getattr(finder, "known_wheel_files", {})
        for name in [
            name for name in compiled if name.startswith(("reducer.core", "reducer.wire"))
        ]:
            del compiled[name]
