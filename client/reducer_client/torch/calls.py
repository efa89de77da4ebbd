"""Collectives on tensors over a group: numbered, packed, started, kept until they are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from reducer_client.group import Group
from reducer_client.torch.callbacks import CallbackThreads
from reducer_client.torch.packing import Packing
from reducer_client.torch.solo import SoloGroup
from reducer_client.torch.strands import MainStrand
from reducer_client.torch.tasks import Task
from reducer_client.torch.works import CallWork, Handle, OnDone

AnyGroup = Group | SoloGroup


# submit(source, target, key=, on_done=, timeout=) starts a collective from one run of host memory
# into another; the same one for a collective in place.
Submit = Callable[..., Handle]


class Calls:
    """The calls of one process group."""

    def __init__(self, group: AnyGroup, name: str) -> None:
        self.group = group
        self._strand = MainStrand(name)
        self._threads = CallbackThreads()
        self._pending: set[CallWork] = set()

    def start(
        self,
        submit: Submit,
        source: Packing | None,
        target: Packing | None,
        *,
        outputs: Sequence[torch.Tensor],
        asynchronous: bool,
        timeout: float | None,
    ) -> CallWork:
        """Start a collective; ``source is target`` for one in place.

        ``outputs``: the value of the work's future.
        """
        for packing in (source, target):
            if packing is not None and packing.device.type != "cpu":
                raise TypeError(f"tensors on {packing.device}: only cpu and cuda are supported")
        key, strand = self._strand.next_call("cpu")
        read, write, finish = _on_host(source, target)
        work = CallWork(outputs, strand, self._threads, finish, timeout)

        def begin(on_done: OnDone | None) -> Handle:
            return submit(read, write, key=key, on_done=on_done, timeout=timeout)

        if not asynchronous:
            return work.start(begin)
        self._pending.add(work)
        return work.start_notified(begin, lambda: self._pending.discard(work))

    def wait_for_pending(self) -> None:
        """Return when every call that was started before is done."""
        for work in list(self._pending):
            work.wait()

    def start_task(
        self, run: Callable[[], None], outputs: Sequence[torch.Tensor], asynchronous: bool
    ) -> CallWork:
        """Start something that waits, and may make calls of its own; equal on all ranks."""
        _, strand = self._strand.next_call("task")
        work = CallWork(outputs, strand, self._threads)

        def begin(on_done: OnDone | None) -> Handle:
            task = Task(run, strand, on_done)
            self._threads.submit(task.run) if asynchronous else task.run()
            return task

        return work.start_notified(begin, lambda: None) if asynchronous else work.start(begin)

    def close(self) -> None:
        """Leave the group, and end the threads of callbacks."""
        self.group.close()
        self._threads.stop()

    def abort(self) -> None:
        """Leave without a word."""
        self.group.abort()
        self._threads.stop()


def _on_host(
    source: Packing | None, target: Packing | None
) -> tuple[torch.Tensor | None, torch.Tensor | None, partial[None] | None]:
    """What is read, what is written, and what brings the result to the target's tensors."""
    read = None if source is None else source.flat()
    if target is None:
        return read, None, None
    write = read if source is target else target.alone()
    if write is None:
        write = torch.empty(target.numel, dtype=target.dtype)
    finish = None if target.alone() is not None else partial(target.unpack, write)
    return read, write, finish
