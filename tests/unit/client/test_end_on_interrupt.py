"""Which errors end a group when they leave a block of `EndOnInterrupt`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from reducer_client.interrupts import EndOnInterrupt


def _raise(*_: object) -> None:
    raise ValueError("the error")


class _Program:
    def handle(self, *_: object) -> None:
        _raise()

    __call__ = handle


HANDLERS: dict[str, Callable[..., Any]] = {
    "function": _raise,
    "method": _Program().handle,
    "partial": partial(_Program().handle, "more"),
    "object": _Program(),
}


@pytest.fixture
def ends() -> list[BaseException]:
    return []


@pytest.fixture(autouse=True)
def _same_handler_afterwards() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("handler", HANDLERS)
def test_an_error_of_a_signal_handler_ends_the_group(
    ends: list[BaseException], handler: str
) -> None:
    signal.signal(signal.SIGUSR1, HANDLERS[handler])
    with pytest.raises(ValueError, match="the error") as raised, EndOnInterrupt(ends.append):
        signal.raise_signal(signal.SIGUSR1)
    assert ends == [raised.value]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_error_that_is_no_exception_ends_the_group(
    ends: list[BaseException], error: type[BaseException]
) -> None:
    with pytest.raises(error), EndOnInterrupt(ends.append):
        raise error
    assert [type(end) for end in ends] == [error]


def test_an_error_of_the_call_does_not_end_the_group(ends: list[BaseException]) -> None:
    signal.signal(signal.SIGUSR1, _Program())
    with pytest.raises(ValueError, match="the error"), EndOnInterrupt(ends.append):
        _raise()
    assert not ends


def test_an_error_of_a_call_that_a_handler_makes_does_not_end_the_group(
    ends: list[BaseException],
) -> None:
    def handler(*_: object) -> None:
        with EndOnInterrupt(ends.append):
            int("no number")

    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(ValueError, match="no number"):
        signal.raise_signal(signal.SIGUSR1)
    assert not ends
