"""A process whose children save checkpoints until they are killed: ``python -m`` this DIRECTORY.

For each line "how amount" of standard input, a child saves version after version, and is killed:

- ``calls 40``: by SIGKILL, before its 40th call that opens, makes, renames or removes a file;
- ``bytes 300``: by SIGXFSZ, when a file would grow beyond 300 bytes. The manifest then ends there.

A line of standard output answers: the first version, the last version that was saved, how many
calls there were until then, and the signal. Version 2n is a new step, and version 2n + 1 replaces
it. Before the next child begins, the test saves the version ``after_restart``.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from reducer_client.tables import checkpoints
from reducer_client.tables.checkpoints import TableImage
from tests.support.table_images import image

KEEP = 2
_SAVES = 2  # of a child


def table(version: int) -> TableImage:
    return image(version, state={"version": version})


def save(directory: str, version: int) -> None:
    checkpoints.save(directory, version // 2, [table(version)], keep=KEEP, file_limit=150)


def after_restart(last: int) -> int:
    """A version of a new step. The version after the last one may have been complete, too."""
    return (last + 3) // 2 * 2


class _Countdown:
    """Counts this process's calls that name files, and kills it before one of them."""

    def __init__(self, last: int) -> None:
        self.calls = 0
        self._last = last

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "ctypes.dlsym") or event.startswith("os."):
            self.calls += 1
            if self.calls == self._last:
                os.kill(os.getpid(), signal.SIGKILL)


def _child(directory: str, first: int, how: str, amount: int, out: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    countdown = _Countdown(amount if how == "calls" else 0)
    sys.addaudithook(countdown)  # it sees the calls of the standard library, too
    if how == "bytes":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (amount, amount))
    for version in range(first, first + _SAVES):
        save(directory, version)
        os.write(out, f"{version} {countdown.calls}\n".encode())


def main(directory: str) -> None:
    first = 1
    for line in sys.stdin:
        how, amount = line.split()
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                _child(directory, first, how, int(amount), writer)
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader) as told:
            saved = [tuple(map(int, answer.split())) for answer in told]
        _, status = os.waitpid(pid, 0)
        last, calls = saved[-1] if saved else (first - 1, 0)
        print(first, last, calls, os.WTERMSIG(status), flush=True)
        first = after_restart(last) + 1


if __name__ == "__main__":
    main(sys.argv[1])
