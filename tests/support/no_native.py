"""A plugin of pytest (`-p tests.support.no_native`): skips tests that need a compiled part.

For an installation with REDUCER_NO_NATIVE=1, which has neither the client's engine nor the native
kernels.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

_LACKS = re.compile(
    r"ImportError\W+.*(_engine|_native|no engine).*|No module named '(\S+\._engine|engine_parts)'"
    r"|Error: reducer_client has no engine|sums run on the numpy kernels"
)


def _skip(
    report: pytest.CollectReport | pytest.TestReport, node: pytest.Item | pytest.Collector
) -> None:
    if report.failed and (found := _LACKS.search(str(report.longrepr))):
        report.outcome = "skipped"
        report.longrepr = (str(node.path), 0, found[0])


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _skip(report, collector)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _skip(report, item)
    return report
