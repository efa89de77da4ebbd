"""Threads for callbacks that may block on other calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

from reducer_client.reports import logger

_STOPPING = 5.0  # seconds that `stop` waits for each running callback


class CallbackThreads:
    """Runs each task at once, on an idle thread or on a new one.

    The threads are daemons, unlike the threads of a ThreadPoolExecutor. When a program fails, its
    exit must not wait for a callback that waits for another rank.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task on a thread.

        Raises RuntimeError if the system cannot start a thread. The task then never runs.
        """
        with self._changed:
            if len(self._tasks) < self._idle:
                self._tasks.append(task)
                self._changed.notify()
                return
            name = f"reducer-callbacks-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()  # the thread waits for the lock
            self._threads.append(thread)
            self._tasks.append(task)

    def run(self, task: Callable[[], None]) -> None:
        """Run a task in any case: on this thread if no other thread can be started."""
        try:
            self.submit(task)
        except Exception:  # RuntimeError, or no memory
            task()

    def stop(self) -> None:
        """Run the remaining tasks and end the threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_STOPPING)

    def _run(self) -> None:
        # Before this call a new thread computes with all cores, after it with the number given to
        # `set_num_threads`. The last bits of a matrix product depend on that number.
        torch.get_num_threads()
        while (task := self._next()) is not None:
            try:
                task()
            except Exception:
                logger.exception("a callback of a finished call failed")
            del task

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._tasks or self._stopping)
            self._idle -= 1
            return self._tasks.popleft() if self._tasks else None
