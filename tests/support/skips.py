"""A plugin of pytest: `-p tests.support.skips` fails a run with a skip for a reason not listed
here.

CI and `make test` load the plugin where the machine has everything (tests/machine.sh). A test that
skips there never runs anywhere.
"""

from __future__ import annotations

import re

import pytest

# A test may skip for these reasons.
ALLOWED = (
    # No GPU, or a test that is only useful beside a GPU.
    r"CUDA",
    r"no NVIDIA driver",
    r"no libnccl",
    r"TensorFlow not installed$",
    # Downloads of gigabytes, which other targets make.
    r"make test-nccl",
    r"make test-frameworks",
    # Root runs a similar test.
    r"a file of root's is another case",
    # Debian has this module in a separate package.
    r"_testcapi",
    # An option of newer kernels.
    r"Linux before 6\.16",
    # A security module may keep user namespaces from users that are not root.
    r"no user namespaces here",
    # A host without IPv6.
    r"\[::1\]: ",
)
_ALLOWED = re.compile("|".join(ALLOWED))


class _Watch:
    def __init__(self) -> None:
        self.unexpected: list[str] = []

    def _look(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        # An expected failure counts as skipped, too.
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            if not _ALLOWED.search(reason):
                self.unexpected.append(f"{report.nodeid}: {reason}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        passed = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self.unexpected and session.exitstatus in passed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unexpected:
            terminalreporter.section("unexpected skips (tests/support/skips.py)", red=True)
            for line in sorted(set(self.unexpected)):
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist report to one runner
        config.pluginmanager.register(_Watch())
