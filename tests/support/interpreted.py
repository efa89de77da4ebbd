"""Runs the sources of compiled modules, since compiled modules cannot be patched or traced."""

from __future__ import annotations

import sys

# All of them: a compiled module brings those that it knows, beside their sources.
COMPILED = ("reducer.core", "reducer.wire.errors", "reducer.server", "reducer.wire")


def run_interpreted() -> None:
    """Let an editable install find the sources; call this before any of them is imported.

    A plain checkout is interpreted anyway.
    """
    for finder in sys.meta_path:
        compiled = getattr(finder, "known_wheel_files", {})
        for name in [name for name in compiled if name.startswith(COMPILED)]:
            del compiled[name]
