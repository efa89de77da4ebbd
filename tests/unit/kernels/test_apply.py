"""A step of an optimizer: the native kernels have the bits of NumPy's, and both find what is not
finite. tests/unit/optimizers compares the steps with those of the frameworks."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from reducer.kernels import KernelSet, _numpy
from reducer.optimizers import (
    SCALARS,
    SGD,
    SLOT_COUNTS,
    Adagrad,
    Adam,
    AdamW,
    NoOptimizer,
    Optimizer,
    Rule,
    Scalars,
)
from reducer.wire.codes import Flag
from tests.support import counts
from tests.support.unaligned import unaligned

OPTIMIZERS: list[Optimizer] = [
    NoOptimizer(),
    SGD(0.1, convention="torch", weight_decay=0.01),
    SGD(0.1, convention="torch", momentum=0.9, dampening=0.3, weight_decay=0.01),
    SGD(0.1, convention="tf", momentum=0.9, nesterov=True),
    SGD(0.1, convention="keras", momentum=0.9, nesterov=True, weight_decay=0.01),
    Adagrad(0.1, convention="torch", lr_decay=0.1, weight_decay=0.01),
    Adagrad(0.1, convention="keras", weight_decay=0.01),
    Adam(0.1, convention="torch", weight_decay=0.01),
    AdamW(0.1, convention="keras", beta1=0.0),
]
OFFSETS = (0, 1, 4, 60, 63) if counts.LONG else (0, 63)  # bytes after an aligned address
SHORT = tuple(product(range(68), OFFSETS))  # (elements, offset)
LONG = tuple(product((1_000, 2_049, 16_383, 16_385, 50_001), (0, 3, 16)))
SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 1e-22, -1e-20, 1e19, -3e38], np.float32)

Arrays = list[memoryview]


def drawn(rule: Rule, count: int, offset: int) -> Arrays:
    """Parameters, gradient and slots: mostly ordinary, some special; second moments above 0."""
    rng = np.random.default_rng([rule, count, offset])
    arrays = []
    for number in range(2 + SLOT_COUNTS[rule]):
        values = rng.normal(size=count).astype(np.float32)
        values = np.where(rng.random(count) < 0.1, rng.choice(SPECIAL, count), values)
        if number >= 2:
            values = np.abs(values)
        arrays.append(unaligned(values.tobytes(), offset))
    return arrays


def apply(kernels: KernelSet, rule: Rule, arrays: Arrays, scalars: Scalars) -> int:
    parameters, gradient, *slots = arrays
    return kernels.apply(rule, parameters.nbytes // 4, parameters, gradient, slots, scalars)


def numbers(arrays: Arrays) -> list[bytes]:
    """The bits of arrays, without sign and payload of NaN, which no kernel defines."""
    values = [np.frombuffer(array, np.float32) for array in arrays]
    return [np.where(np.isnan(value), np.float32(np.nan), value).tobytes() for value in values]


@cache
def expected(which: int, count: int, offset: int) -> tuple[list[bytes], int]:
    return two_steps(_numpy, which, count, offset)


def two_steps(kernels: KernelSet, which: int, count: int, offset: int) -> tuple[list[bytes], int]:
    optimizer = OPTIMIZERS[which]
    arrays = drawn(optimizer.rule, count, offset)
    flags = 0
    for step in (1, 2):
        flags |= apply(kernels, optimizer.rule, arrays, optimizer.scalars(step))
    return numbers(arrays), flags


@pytest.mark.parametrize("which", range(len(OPTIMIZERS)), ids=lambda i: repr(OPTIMIZERS[i]))
def test_every_kernel_gives_the_bits_of_numpy(kernels: KernelSet, which: int) -> None:
    for count, offset in (*SHORT, *LONG):
        got = two_steps(kernels, which, count, offset)
        assert got == expected(which, count, offset), (count, offset)


def test_the_cases_have_every_rule_and_both_flags() -> None:
    assert {optimizer.rule for optimizer in OPTIMIZERS} == set(Rule)
    seen = {expected(which, 67, 1)[1] for which in range(len(OPTIMIZERS))}
    assert seen == {0, Flag.NONFINITE}


@pytest.mark.parametrize("rule", Rule)
def test_one_bad_element_is_found(kernels: KernelSet, rule: Rule) -> None:
    """In any array, at any place, with any scalars: also with scalars that are 0."""
    rng = np.random.default_rng(rule)
    kind = SCALARS[rule]
    for count, at, bad in product((1, 37), (0, 2, 3, 20, 36), (np.inf, -np.inf, np.nan)):
        if at >= count:
            continue
        chosen = kind._make(rng.choice([0.0, 0.5, 1.0], len(kind._fields)))
        ones = [unaligned(b"\0\0\x80\x3f" * count, 52) for _ in range(2 + SLOT_COUNTS[rule])]
        assert apply(kernels, rule, ones, chosen) == 0
        for culprit in range(rule == Rule.REPLACE, len(ones)):  # REPLACE overwrites parameters
            arrays = [unaligned(b"\0\0\x80\x3f" * count, 52) for _ in ones]
            np.frombuffer(arrays[culprit], np.float32)[at] = bad
            flags = apply(kernels, rule, arrays, chosen)
            assert flags == Flag.NONFINITE, (culprit, at, bad, chosen)


def test_a_square_beyond_float32_is_found(kernels: KernelSet) -> None:
    """The parameters stay finite: only the slot shows the overflow."""
    for optimizer in (Adagrad(0.1, convention="torch"), Adam(0.1, convention="torch")):
        arrays = [np.ones(5, np.float32) for _ in range(2 + len(optimizer.slots))]
        arrays[1][3] = 1e20
        views = [memoryview(array) for array in arrays]
        assert apply(kernels, optimizer.rule, views, optimizer.scalars(1)) == Flag.NONFINITE
        assert np.isfinite(arrays[0]).all() and np.isinf(arrays[-1][3])


def test_nothing_is_written_beyond_count(kernels: KernelSet) -> None:
    for optimizer, count in product(OPTIMIZERS, (0, 1, 37)):
        arrays = [bytearray(b"\x3c" * (count * 4 + 9)) for _ in range(2 + len(optimizer.slots))]
        gradient = bytes(arrays[1])
        kernels.apply(optimizer.rule, count, arrays[0], gradient, arrays[2:], optimizer.scalars(1))
        assert all(array[count * 4 :] == b"\x3c" * 9 for array in arrays)


def test_bad_arguments_are_refused_before_a_byte_is_written(kernels: KernelSet) -> None:
    p, g, m, v = (np.ones(8, np.float32) for _ in range(4))
    scalars = Adam(0.1, convention="torch").scalars(1)
    whole = np.zeros(64, np.uint8)
    infinite = (*scalars[:-1], np.inf)
    refused: list[tuple[type[Exception], str, tuple[object, ...]]] = [
        (ValueError, "no kernel for rule 6: expected a Rule", (6, 8, p, g, [m, v], scalars)),
        (ValueError, "no kernel for rule 0: expected a Rule", (0, 8, p, g, [], ())),
        (ValueError, "rule 5 has 6 scalars, got 5", (5, 8, p, g, [m, v], scalars[:5])),
        (ValueError, "rule 5 has 2 slots, got 1", (5, 8, p, g, [m], scalars)),
        (ValueError, r"scalars\[5\] is no finite float32", (5, 8, p, g, [m, v], infinite)),
        (ValueError, r"scalars\[0\] is no finite", (5, 8, p, g, [m, v], (1e39, *scalars[1:]))),
        (ValueError, "count must not be negative, got -1", (5, -1, p, g, [m, v], scalars)),
        (ValueError, "gradient: expected at least 32 bytes", (5, 8, p, g[:7], [m, v], scalars)),
        (ValueError, r"slots\[1\]: expected at least 32", (5, 8, p, g, [m, v[:7]], scalars)),
        (BufferError, "parameters: expected a writable", (5, 8, bytes(32), g, [m, v], scalars)),
        (BufferError, r"slots\[0\]: expected a writable", (5, 8, p, g, [bytes(32), v], scalars)),
        (ValueError, "gradient overlaps parameters", (5, 8, p, p, [m, v], scalars)),
        (ValueError, r"slots\[0\] overlaps gradient", (5, 8, p, g, [g, v], scalars)),
        (ValueError, r"slots\[1\] overlaps parameters", (5, 8, p, g, [m, p], scalars)),
        (
            ValueError,
            r"slots\[1\] overlaps slots\[0\]",
            (5, 8, p, g, [whole[:32], whole[28:60]], scalars),
        ),
        (TypeError, "buffer|bytes-like", (5, 8, p, 7, [m, v], scalars)),
    ]
    for error, message, arguments in refused:
        with pytest.raises(error, match=message):
            kernels.apply(*arguments)  # type: ignore[arg-type]
    assert all((array == 1).all() for array in (p, g, m, v))
    assert not whole.any()
