"""``python -m reducer_tools``: the program `reducer` with all commands."""

from __future__ import annotations

from reducer_tools.cli import main

if __name__ == "__main__":
    main(prog_name="reducer")
