"""The tests of torch.testing as cases of pytest, as torch's test_distributed_spawn.py has them.

Run by ``tests.outside.torch_distributed``, with BACKEND, WORLD_SIZE and TEMP_DIR set.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from torch.testing._internal.distributed import distributed_test as published

_Processes: Any = published.TestDistBackend
_Tests: Any = published.DistributedTest._DistTestBase


class TestDistBackend(_Processes, _Tests):  # type: ignore[misc]  # the bases are Any
    """Each test runs in processes of its own, one for each rank, forked with torch imported."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)
