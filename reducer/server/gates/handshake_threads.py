"""Threads that do what a lane's loop must not wait for: the steps of TLS handshakes.

OpenSSL decodes what a stranger sends before it knows who has signed it, and a certificate can be
made that takes 0.2 s to decode. The interpreter's lock is free meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

# More would take more of the cores from the loop while they do slow steps. A lower priority would
# help it less than it harms: where the cores are busy a thread would be stopped with the
# interpreter's lock in hand, for 0.1 s, and a crowd of honest workers would never come in.
THREADS = 2

Step = Callable[[], None]


class HandshakeThreads:
    """Does the steps in the order in which they come; each wakes its loop."""

    def __init__(self) -> None:
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        for number in range(THREADS):
            name = f"handshakes-{number}"
            threading.Thread(target=_work, args=(self._steps,), name=name, daemon=True).start()

    def do(self, step: Step) -> None:
        self._steps.put(step)

    def close(self) -> None:
        """End, each after its step, and wait for none."""
        for _ in range(THREADS):
            self._steps.put(None)


def _work(steps: SimpleQueue[Step | None]) -> None:
    while (step := steps.get()) is not None:
        try:  # noqa: SIM105  # suppress() takes memory, which may be what has ended
            step()
        except Exception:  # or the thread would end; the tick looks for what has stepped
            pass
        del step  # or what it knows would live until the next one
