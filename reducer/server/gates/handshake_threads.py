"""Threads for the slow steps of TLS handshakes, so that a lane's loop need not wait for them.

OpenSSL decodes a stranger's certificate before it knows the signer, and a certificate can be made
that takes 0.2 s to decode. The interpreter's lock is free meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

# More threads would take more of the cores from the loop. A lower priority would do more harm than
# good: on busy cores a thread could be stopped for 0.1 s while it holds the interpreter's lock, and
# many honest workers would never be admitted.
THREADS = 2

Step = Callable[[], None]


class HandshakeThreads:
    """Runs steps in the order in which they come. Each step wakes its own loop."""

    def __init__(self) -> None:
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        for number in range(THREADS):
            name = f"handshakes-{number}"
            threading.Thread(target=_work, args=(self._steps,), name=name, daemon=True).start()

    def do(self, step: Step) -> None:
        self._steps.put(step)

    def close(self) -> None:
        """End each thread after its current step, without waiting for it."""
        for _ in range(THREADS):
            self._steps.put(None)


def _work(steps: SimpleQueue[Step | None]) -> None:
    while (step := steps.get()) is not None:
        try:  # noqa: SIM105  # suppress() takes memory, which may be what has ended
            step()
        except Exception:  # else the thread would end; the tick finds finished steps
            pass
        del step  # else its objects would live until the next step
