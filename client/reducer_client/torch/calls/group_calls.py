"""Collectives on tensors over a group: they are numbered, packed, started and kept until done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from reducer_client.config import DEFAULT_STEP_TIMEOUT
from reducer_client.errors import ReducerError, RoundTimeoutError
from reducer_client.group import Group
from reducer_client.interrupts import EndOnInterrupt
from reducer_client.single_rank import SingleRankGroup, SingleRankWork
from reducer_client.torch.calls.callbacks import CallbackThreads
from reducer_client.torch.calls.key_scopes import MainScope, Scope
from reducer_client.torch.calls.tasks import Task
from reducer_client.torch.calls.works import CallWork, Handle, OnDone, Receipt
from reducer_client.torch.staging.staging import Stagings
from reducer_client.torch.staging.transfer import Way
from reducer_client.torch.tensors.packing import Packing

AnyGroup = Group | SingleRankGroup


# submit(source, target, key=, on_done=, timeout=) starts a collective from one run of host memory
# into another; the same one for a collective in place. With a way that is sliced
# or by stream, also with parts= or words=.
Submit = Callable[..., Handle]
_PLAIN = Way()


class _Latest(threading.local):
    """Whether torch has waited for the work of each thread's latest synchronous call."""

    receipt: Receipt | None = None


class GroupCalls:
    """The calls of one process group."""

    def __init__(self, group: AnyGroup, name: str) -> None:
        self.group = group
        self.also_ended: list[Callable[[], None]] = []  # called when the group ends by itself
        patience = group.step_timeout or DEFAULT_STEP_TIMEOUT
        self._scope = MainScope(name, group.reducers, patience)
        self._threads = CallbackThreads()
        self._pending: set[CallWork] = set()
        # One for all devices, whose calls have one order; starts a thread when first used.
        self._stager = ThreadPoolExecutor(1, thread_name_prefix="reducer-stager")
        self._stagings = Stagings(self._stager)
        self._end_on_interrupt = EndOnInterrupt(lambda _: self.end_group())
        self._latest = _Latest()

    def start(
        self,
        submit: Submit,
        source: Packing | None,
        target: Packing,
        outputs: Sequence[torch.Tensor],
        options: Any,
        way: Way = _PLAIN,
    ) -> CallWork:
        """Start a collective. ``source is target`` for a collective in place.

        The ranks count their calls. A call that is refused here does not count. On a CUDA device
        some calls are refused later, and count. ``outputs`` is the value of the work's future,
        ``options`` are torch's for the call, and ``way`` is for tensors on a device.
        """
        device, timeout = _common_device(source, target), timeout_of(options)
        staging = self._stagings.of(device)
        if staging is not None:

            def start_on_device() -> CallWork:
                with self._scope.next_call(device.type) as (key, scope):
                    work = CallWork(
                        outputs, scope, self._threads, devices=[device], context=staging.on_back
                    )

                    def begin(on_done: OnDone | None) -> Handle:
                        assert on_done is not None
                        keyed = partial(submit, key=key, timeout=timeout)
                        return staging.start(source, target, keyed, on_done, way)

                    return self._notified(work, begin)

            return self._make(start_on_device, options.asyncOp)
        read, write, finish = _on_host(source, target)

        def start() -> CallWork:
            with self._scope.next_call(device.type) as (key, scope):
                work = CallWork(outputs, scope, self._threads, finish, timeout)

                def begin(on_done: OnDone | None) -> Handle:
                    return submit(read, write, key=key, on_done=on_done, timeout=timeout)

                if options.asyncOp:
                    return self._notified(work, begin)
                return work.start(begin, self.end_group)

        return self._make(start, options.asyncOp)

    @property
    def waits_by_stream(self) -> bool:
        """Whether only the stream waits for CUDA results (``REDUCER_CUDA_WAIT=stream``)."""
        return isinstance(self.group, Group) and self.group.settings.cuda_wait == "stream"

    def pending(self) -> list[CallWork]:
        """The asynchronous calls that have started and have not ended."""
        return [work for work in list(self._pending) if work.started]

    def start_task(
        self, run: Callable[[str], None], outputs: Sequence[torch.Tensor], asynchronous: bool
    ) -> CallWork:
        """Start a function that waits and may make calls. All ranks must start the same tasks.

        ``run`` gets a key for its own calls, because the thread that runs it may start at any time.
        """

        def run_or_end(key: str) -> None:
            try:
                run(key)
            except RoundTimeoutError as error:
                self.end_group(str(error))
                raise

        def start() -> CallWork:
            with self._scope.next_call("task") as (key, scope):
                work = CallWork(outputs, scope, self._threads)
                step = partial(run_or_end, key)
                if asynchronous:
                    return self._notified(work, self._beginning(step, scope))
                task = Task(scope, None)
                task.run(step)
                return work.start(lambda _: task, self.end_group)

        return self._make(start, asynchronous)

    def end_group(self, timed_out: str = "") -> None:
        """End the group at once: the other ranks have a call or a result that this rank lacks.

        ``timed_out`` is the text of the timeout, if a timeout is the cause.
        """
        self.group.abort(timed_out)
        for end in self.also_ended:
            end()

    def _make(self, start: Callable[[], CallWork], asynchronous: bool) -> CallWork:
        """Start a call, and wait for a synchronous one.

        torch waits again for the work of a synchronous call as soon as the call returns. If torch
        did not wait for the work of this thread's latest synchronous call, an interrupt came in
        between: the program does not know that the call is over, so the group ends.
        """
        with self._end_on_interrupt:
            if (receipt := self._latest.receipt) is not None and not receipt.given:
                self.end_group()
            work = start()
            if not asynchronous:
                self._wait(work)
                self._latest.receipt = work.receipt = Receipt()
            return work

    def _wait(self, work: CallWork) -> None:
        try:
            work.wait()
        except ReducerError:
            raise
        except Exception:  # no memory for the result, which the other ranks have
            self.end_group()
            raise

    def wait_here(self, run: Callable[[], None], outputs: Sequence[torch.Tensor]) -> CallWork:
        """Run a function that waits and makes no call of this group, and return its finished work.

        Raises the function's error.
        """

        def start() -> CallWork:
            run()
            return CallWork(outputs, Scope("waiting"), self._threads).start(
                lambda _: SingleRankWork()
            )

        return self._make(start, asynchronous=False)

    def start_waiting(
        self,
        run: Callable[[], None],
        outputs: Sequence[torch.Tensor],
        parts: Sequence[CallWork] = (),
    ) -> CallWork:
        """Start a function that waits and makes no call of this group.

        A rank may start the function alone. Barriers do not wait for it. The streams of programs
        that wait for the work also wait for ``parts``.
        """
        scope = Scope("waiting")
        work = CallWork(outputs, scope, self._threads, parts=parts)
        return work.start_notified(self._beginning(run, scope), lambda: None)

    def _beginning(
        self, run: Callable[[], None], scope: Scope
    ) -> Callable[[OnDone | None], Handle]:
        def begin(on_done: OnDone | None) -> Handle:
            task = Task(scope, on_done)
            try:
                self._threads.submit(partial(task.run, run))
            except BaseException:
                scope.end()  # nothing will run in it
                raise
            return task

        return begin

    def _notified(self, work: CallWork, begin: Callable[[OnDone | None], Handle]) -> CallWork:
        self._pending.add(work)
        try:
            return work.start_notified(begin, lambda: self._pending.discard(work), self.end_group)
        except BaseException:  # refused
            self._pending.discard(work)
            raise

    def close(self) -> None:
        """Leave the group and end the callback threads."""
        self.group.close()
        self._stop()

    def abort(self) -> None:
        """Leave the group at once and end the callback threads."""
        self.group.abort()
        self._stop()

    def _stop(self) -> None:
        self._stager.shutdown()
        self._threads.stop()


def timeout_of(options: Any) -> float | None:
    """The timeout of a call in seconds; None if torch's options for the call set none."""
    seconds: float = options.timeout.total_seconds()
    return seconds if seconds > 0 else None


def _common_device(source: Packing | None, target: Packing) -> torch.device:
    devices = {tensor.device for p in (source, target) if p is not None for tensor in p.tensors}
    device = next(iter(devices))
    if len(devices) > 1 or device.type not in ("cpu", "cuda"):
        names = ", ".join(sorted(str(device) for device in devices))
        raise TypeError(f"tensors on {names}: expected all on the cpu, or all on one cuda device")
    return device


def _on_host(
    source: Packing | None, target: Packing
) -> tuple[torch.Tensor | None, torch.Tensor, partial[None] | None]:
    """The memory to read, the memory to write, and the function that unpacks the result."""
    read = None if source is None else source.flat()
    alone = target.alone()
    write = read if source is target else alone
    if write is None:
        write = torch.empty(target.numel, dtype=target.dtype, device="cpu")
    return read, write, None if alone is not None else partial(target.unpack, write)
