"""Runs `reducer plan` for a test."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from reducer_tools.cli import main


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def planned(*arguments: str) -> dict[str, Any]:
    """The answer of `reducer plan --json`."""
    result = plan(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found
