"""A line that lacks memory is lost alone: the program and the log's thread go on.

One call of Python's allocators fails, in a separate process.
"""

from __future__ import annotations

import importlib
import logging
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reducer.log import LineWriter

ROOT = Path(__file__).parents[3]
MOST_CALLS = 60
WENT_ON, LOST_A_LINE = 0, 2


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


def read_until(descriptor: int, text: bytes) -> bytes:
    """Read until this text comes; raises TimeoutError after two silent seconds."""
    found = b""
    while text not in found:
        if not select.select([descriptor], [], [], 2.0)[0]:
            raise TimeoutError(f"no {text!r} behind {found!r}")
        found += os.read(descriptor, 65_536)
    return found


def lose(call: int) -> int:
    """Log a line while allocation number `call` fails."""
    memory = importlib.import_module("_testcapi")
    begin, end = memory.set_nomemory, memory.remove_mem_hooks
    reader, written = os.pipe()
    writer = LineWriter(written)
    writer.emit(record("first"))
    read_until(reader, b"first\n")
    line, last = record("second"), call + 1
    begin(call, last)
    try:
        writer.emit(line)
        time.sleep(0.01)  # lets the thread run
    except MemoryError:
        pass
    finally:
        end()
    threading.Thread(target=writer.emit, args=(record("third"),), daemon=True).start()
    return WENT_ON if b"second\n" in read_until(reader, b"third\n") else LOST_A_LINE


def play() -> int:
    """Fail each call in turn, each in its own process; returns how many lost a line."""
    lost = 0
    for call in range(MOST_CALLS):
        pid = os.fork()
        if not pid:
            os._exit(lose(call))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (WENT_ON, LOST_A_LINE), f"call {call}: {status}"
        lost += status == LOST_A_LINE
    return lost


def test_a_line_that_there_is_no_memory_for_is_lost_alone() -> None:
    """Regression: the queue's lock stayed locked, and the event loop waited for ever."""
    pytest.importorskip("_testcapi")
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


if __name__ == "__main__":
    print(play())
