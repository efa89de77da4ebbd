"""Modes as callers write them, and as frames have them."""

from __future__ import annotations

import pytest

from reducer_client.tables.modes import (
    SSP,
    Async,
    KOfN,
    Mode,
    Sync,
    WireMode,
    find_mode,
    from_the_wire,
)


@pytest.mark.parametrize(
    ("mode", "wire"),
    [
        (Async(), WireMode("async", -1, 0, 0, "drop")),
        (Async(staleness=0), WireMode("async", 0, 0, 0, "drop")),
        (SSP(3), WireMode("ssp", 3, 4, 0, "drop")),
        (Sync(), WireMode("step", 4, 4, 4, "drop")),
        (KOfN(3), WireMode("step", 4, 4, 3, "drop")),
        (KOfN(3, late="carry", bound=7), WireMode("step", 7, 4, 3, "carry")),
    ],
)
def test_a_mode_comes_back_from_the_wire(mode: Mode, wire: WireMode) -> None:
    assert mode.on_the_wire(4) == wire
    assert from_the_wire(wire) == mode


def test_short_names_are_modes() -> None:
    assert find_mode("async") == Async() and find_mode("sync") == Sync()
    assert find_mode(SSP(1)) == SSP(1)


@pytest.mark.parametrize("given", ["ssp", None, SSP, 3])
def test_other_modes_are_refused_with_the_list(given: object) -> None:
    with pytest.raises(ValueError, match=r"expected .*KOfN"):
        find_mode(given)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SSP(-1), "expected an integer from 0"),
        (lambda: Async(staleness=True), "expected an integer from 0"),
        (lambda: KOfN(0), "expected an integer from 1"),
        (lambda: KOfN(2, late="later"), "expected one of"),
        (lambda: KOfN(2, bound=0), "expected an integer from 1"),
        (lambda: KOfN(5).on_the_wire(4), "above the number of workers"),
        (lambda: Sync().on_the_wire(None), "number of workers is not known"),
    ],
)
def test_what_no_mode_can_be_is_refused(make: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()  # type: ignore[operator]
