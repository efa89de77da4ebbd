"""The staging on a simulated device: no order of the device's work, which CUDA allows, finds wrong
bytes; and each wait of the staging is needed for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed

from reducer_client.errors import ReducerError
from reducer_client.parts import DeviceWords, Parts
from reducer_client.torch.staging import transfer
from reducer_client.torch.staging.staging import Staging
from reducer_client.torch.staging.transfer import Way
from reducer_client.torch.tensors.packing import Packing
from tests.support.counts import LONG
from tests.support.simulated_device import DeadlockError, SimulatedDevice

SCHEDULES = 10_000 if LONG else 80
SLICE = 16  # bytes
CALLS = 6
SIZES = (1, 4, 7, 12)
GARBAGE = 99
MOST_STEPS = 10_000  # a schedule has about 300


def _result(value: Any) -> Any:
    """What the reducers make of a value; exact in bfloat16."""
    return 2 * value + 1


class _Round:
    """A round of the reducers, which reads what has come and writes results, piece by piece."""

    def __init__(
        self,
        read: Any,
        write: torch.Tensor,
        on_done: Any,
        parts: Parts | None,
        words: DeviceWords | None,
        fails: bool,
    ) -> None:
        self._read, self._write, self._on_done, self._parts = read, write, on_done, parts
        self._words, self._fails = words, fails
        self._filled = write.numel() if parts is None else parts.filled
        self._at = 0
        self._told = 0

    def fill(self, elements: int) -> None:
        self._filled = elements

    def exception(self) -> Exception | None:
        return ReducerError("as the test wants") if self._fails else None

    def step(self) -> bool:
        """Go on by one element, if it is there. Returns whether the round is over."""
        if self._words is not None:
            self._filled = int(self._words.slices[0]) * self._words.slice
        if self._fails and self._at == self._write.numel() // 2:
            return self._end()
        if self._at < min(self._filled, self._write.numel()):
            at = slice(self._at, self._at + 1)
            self._write[at] = _result(0 if self._read is None else self._read[at])
            self._at += 1
        if self._at == self._write.numel():
            return self._end()
        parts = self._parts
        if parts is not None and parts.on_part is not None and self._at - self._told >= parts.size:
            self._told = self._at
            parts.on_part(self._at)
        return False

    def _end(self) -> bool:
        if self._words is not None:  # as the engine does
            self._words.gate[0] = DeviceWords.FAILED if self._fails else DeviceWords.DONE
        self._on_done(self)
        return True


class _Stager:
    """The executor of a staging: its thread goes on when the schedule says so."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Any, ...]] = []

    def submit(self, *task: Any) -> None:
        self.tasks.append(task)


class Schedule:
    """A program, the stager, the reducers and a device; the seed decides who goes on."""

    def __init__(self, seed: int, omitted: str = "") -> None:
        self.device = SimulatedDevice(seed, omitted)
        self.device.meanwhile = lambda: self._go_on(without_stager=True)
        self.random = self.device.random
        self.stager: Any = _Stager()
        self.staging = Staging(self.device, self.stager)
        self.rounds: list[_Round] = []
        self.wrong: list[str] = []
        self.streams = [self.device.current, self.device.new_stream()]
        self.program: Iterator[Any] | None = self._program()
        self.awaited: Any = None
        self.steps = 0

    def run(self) -> list[str]:
        """What the program found wrong."""
        while self.program is not None or self.stager.tasks or self.rounds:
            self._go_on()
        self.device.synchronize()
        return self.wrong

    def _go_on(self, without_stager: bool = False) -> None:
        able: list[Any] = []
        if self.program is not None and (self.awaited is None or self.awaited._ended.is_set()):
            able.append(self._step_program)
        if self.stager.tasks and not without_stager:
            able.append(self._step_stager)
        if self.rounds:
            able.append(self._step_reducers)
        if any(stream.is_ready() for stream in self.device._streams):
            able.append(self.device.step)
        self.steps += 1
        if not able or self.steps > MOST_STEPS:
            raise DeadlockError
        self.random.choice(able)()

    def _step_program(self) -> None:
        assert self.program is not None
        try:
            self.awaited = next(self.program)
        except StopIteration:
            self.program = self.awaited = None

    def _step_stager(self) -> None:
        function, *arguments = self.stager.tasks.pop(0)
        function(*arguments)

    def _step_reducers(self) -> None:
        going = self.random.choice(self.rounds)
        if going.step():
            self.rounds.remove(going)

    def _submit(
        self,
        read: Any,
        write: torch.Tensor,
        *,
        on_done: Any,
        parts: Parts | None = None,
        words: DeviceWords | None = None,
    ) -> _Round:
        fails = words is not None and self.random.random() < 0.1
        self.rounds.append(_Round(read, write, on_done, parts, words, fails))
        return self.rounds[-1]

    # --- the program ---

    def _fill(self, flat: torch.Tensor, value: int) -> None:
        self.device.queue(self.device.current, lambda: flat.fill_(value))

    def _expect(self, flat: torch.Tensor, value: int, what: str, handle: Any = None) -> None:
        def look() -> None:
            fails = handle is not None and handle.exception() is not None
            right = flat.isnan() if fails else flat == value
            if not bool(right.all()):
                self.wrong.append(f"{what}: {flat.tolist()}, expected {value}")

        self.device.queue(self.device.current, look)

    def _program(self) -> Iterator[Any]:
        """Calls of all kinds. Yields None, or a transfer to wait for."""
        under_way: list[tuple[Any, list[torch.Tensor], Any, int]] = []
        for number in range(1, CALLS + 1):
            self.device.current = made_on = self.random.choice(self.streams)
            tensors = [
                self.device.allocate(size, torch.float32)
                for size in self.random.choices(SIZES, k=2)
            ]
            yield None
            for tensor in tensors:
                self._fill(tensor, number)
            started = self._start(tensors)
            under_way.append((started, tensors, made_on, number))
            yield None
            while under_way and self.random.random() < 0.5:
                yield from self._end(*under_way.pop(0))
        for entry in under_way:
            yield from self._end(*entry)

    def _start(self, tensors: list[torch.Tensor]) -> Any:
        """A call in place of one or two tensors, from one to another, or one that only receives."""
        kind = self.random.choice(["one", "both", "apart", "receive"])
        both = Packing(tensors if kind == "both" else tensors[:1])
        source = None if kind == "receive" else both
        target = both
        if kind == "apart":
            target = Packing([self.device.allocate(tensors[0].numel(), torch.float32)])
        carried = torch.bfloat16 if self.random.random() < 0.3 else None
        sliced = source is target and self.random.random() < 0.8
        way = Way(carried, sliced, by_stream=self.random.random() < 0.5)
        started = self.staging.start(source, target, self._submit, lambda done: None, way)
        return started, kind, target

    def _end(
        self, started: Any, tensors: list[torch.Tensor], made_on: Any, number: int
    ) -> Iterator[Any]:
        """Use the result on any stream, or drop it; then use the memory for something else."""
        handle, kind, target = started
        waits = self.random.random() < 0.7
        if not (waits and handle.by_stream):
            yield handle  # one that does not wait returns the memory when the call has ended
        self.device.current = self.random.choice(self.streams) if waits else made_on
        if waits:
            with suppress(ReducerError):  # of a call that has ended before
                handle.wait(None if handle.by_stream else 1.0)
            if handle.exception() is not None:
                handle._device.current.wait_event(handle._returned)
            for tensor in target.tensors:
                value = 0 if kind == "receive" else number
                self._expect(tensor, _result(value), f"call {number}, {kind}", handle)
        yield None
        if self.device.current is not made_on and waits:
            done = self.device.new_event()  # as a program does before it returns the memory
            done.record(self.device.current)
            made_on.wait_event(done)
        self.device.current = made_on
        for tensor in {t.data_ptr(): t for t in (*tensors, *target.tensors)}.values():
            self.device.free(tensor.view(-1))
            again = self.device.allocate(tensor.numel(), torch.float32)
            self._fill(again, GARBAGE + number)
            yield None
            self._expect(again, GARBAGE + number, f"memory after call {number}")
            self.device.free(again)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SLICE_BYTES", SLICE)


def test_no_schedule_finds_wrong_bytes() -> None:
    for seed in range(SCHEDULES):
        assert not Schedule(seed).run(), seed


def _calls() -> list[str]:
    calls: set[str] = set()
    for seed in range(30):
        schedule = Schedule(seed)
        schedule.run()
        calls |= schedule.device.calls
    own = ("_end", "free")
    return sorted(call for call in calls if not call.endswith(own))


def _finds_it(omitted: str) -> bool:
    for seed in range(2_000):
        try:
            if Schedule(seed, omitted).run():
                return True
        except (DeadlockError, AssertionError):
            return True
    return False


def test_each_wait_is_needed() -> None:
    calls = _calls()
    assert len(calls) >= 8, calls
    assert [call for call in calls if not _finds_it(call)] == []
