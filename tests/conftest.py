"""Fixtures of every test, among them the noise check: no test may leave anything behind."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

# NumPy's OpenBLAS starts its threads at import, 0.1 CPU seconds in each process of a test.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from reducer import compiled, keyfile
from reducer.wire.errors import InternalError
from tests.support import ranks
from tests.support.certs import Authority, Files
from tests.support.counts import LONG
from tests.support.wait import wait_until

SETTLE_SECONDS = 5.0
# By what they take on two quiet cores; xdist begins files in this order (--no-loadscope-reorder).
LONGEST = (
    "test_failover",
    "test_bars",
    "test_bench_command",
    "test_collectives",
    "test_tls",
    "test_endurance",
    "test_matrix",
    "test_process_group_training",
    "test_process_group_failures",
    "test_check",
    "test_collnet",
    "test_failover_model",
    "test_docs",
    "test_failures",
    "test_demo",
    "test_transport",
    "test_proxy",
    "test_storm",
    "test_ps_example",
    "test_proofs",
    "test_psk",
    "test_table_kills",
    "test_dialing",
    "test_tables",
    "test_table_backups",
    "test_table_checkpoints",
    "test_hierarchy",
    "test_horovod_elastic",
    "test_top",
)


# The machine may be busy: no example has a deadline.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_configure() -> None:
    """No test may tell of other code than the sources say, nor of a shell's background.

    A shell lets what it starts there ignore Ctrl-C, and every process under that inherits it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        compiled.check_sources()
    except InternalError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """No long tests but by night; and the longest files first, so that no worker waits for one."""
    if not LONG:
        config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("long")])
        items[:] = [i for i in items if not i.get_closest_marker("long")]
    longest = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: longest.get(item.path.stem, len(longest)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage collections while modules are imported: they would take a third of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _descriptors() -> dict[int, str]:
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        # The runner's own: captured output, /proc being listed, libraries' devices.
        if target.startswith(("socket:", "pipe:", "anon_inode:")):
            found[int(name)] = target
    found.pop(ranks.server()[1] or -1, None)
    return found


def _children() -> set[int]:
    """Ours, and the ranks."""
    server = ranks.server()[0]
    found = _children_of(os.getpid()) | (_children_of(server) if server else set())
    return found - {server}


def _children_of(pid: int) -> set[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return set()
    return {int(pid) for pid in text.split()}


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


class _Unseen(logging.Handler):
    """What event loops log: unhandled exceptions, tasks destroyed while pending."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> None:
    """Take imported modules from what `no_noise` searches after each test: torch is large."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_noise() -> Iterator[None]:
    """Fail on leaked descriptors, child processes, threads, and exceptions nobody saw.

    Unawaited coroutines and unraisable exceptions are warnings, and warnings are errors
    (pyproject.toml).
    """
    descriptors, children, threads = _descriptors(), _children(), _threads()
    unseen: list[str] = []
    handler = _Unseen(unseen)
    logging.getLogger("asyncio").addHandler(handler)
    hook = threading.excepthook
    threading.excepthook = lambda args: unseen.append(f"{args.thread}: {args.exc_value!r}")
    yield
    threading.excepthook = hook
    gc.collect()  # a task that was destroyed while pending says so now
    logging.getLogger("asyncio").removeHandler(handler)
    assert not unseen, f"exceptions that nobody saw: {unseen}"

    def settled() -> bool:
        new = _descriptors()
        leaked = {fd: what for fd, what in new.items() if descriptors.get(fd) != what}
        return not leaked and not _children() - children and not _threads() - threads

    if not settled():
        try:
            wait_until(settled, SETTLE_SECONDS)
        except AssertionError:
            leaked = set(_descriptors().items()) - set(descriptors.items())
            pytest.fail(
                f"left behind: descriptors {leaked}, processes {_children() - children}, "
                f"threads {_threads() - threads}"
            )


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fresh key of mode psk."""
    path = str(tmp_path_factory.mktemp("psk") / "key")
    keyfile.make(path)
    return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA of mode tls."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def certs(authority: Authority) -> Files:
    """Certificate, key and CA, good for reducers and workers on this machine."""
    return authority.issue()
