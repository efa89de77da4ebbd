"""``python -m reducer``: the daemon's commands."""

from __future__ import annotations

from reducer.cli import main

if __name__ == "__main__":
    main(prog_name="reducer")
