"""Skips the tests of the NCCL plugin if the plugin was not built."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plugin import NCCL_PLUGIN


class _Skipped(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        raise pytest.skip.Exception(f"{NCCL_PLUGIN} was not built: make nccl-plugin")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> _Skipped | None:
    if NCCL_PLUGIN.exists():
        return None
    skipped: _Skipped = _Skipped.from_parent(parent, path=module_path)
    return skipped
