"""The arrays that a group accepts and returns, with one worker and real reducers."""

from __future__ import annotations

import array
import re
import threading
from typing import Any

import numpy as np
import pytest

from reducer_client import Group, Work
from tests.support.arrays import BFLOAT16, DTYPES, FLOAT8, Array, sample

LAYOUTS: dict[str, Array] = {
    "zero-size": np.zeros((0, 3), np.float32),
    "zero-dim": np.array(2.5, np.float64),
    "one": np.ones(1, np.int8),
    "strided": np.arange(40, dtype=np.int32).reshape(8, 5)[::2, 1:4],
    "reversed": np.arange(9, dtype=np.float16)[::-1],
    "fortran": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
    "transposed": np.arange(24, dtype=np.uint64).reshape(2, 3, 4).transpose(2, 0, 1),
    "unaligned": np.frombuffer(b"\0" + bytes(range(16)), np.uint8)[1:].view(np.int32),
    "broadcast": np.broadcast_to(np.float32(3), (4, 5)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_has_the_shape_dtype_and_values_of_the_input(solo: Group, layout: str) -> None:
    given = LAYOUTS[layout]
    given = given.view()
    given.flags.writeable = False
    result = solo.all_reduce(given).wait()
    assert (result.shape, result.dtype) == (given.shape, given.dtype)
    assert np.array_equal(result, given)
    assert result.flags.writeable and not np.shares_memory(result, given)


@pytest.mark.parametrize(
    "buffer",
    [bytes(range(5)), bytearray(b"abc"), memoryview(b"xyz"), array.array("d", [1.5, -2.0])],
    ids=["bytes", "bytearray", "memoryview", "array"],
)
def test_any_buffer_is_accepted(solo: Group, buffer: Any) -> None:
    result = solo.all_reduce(buffer, op="max").wait()
    assert result.tobytes() == bytes(memoryview(buffer).cast("B"))


def test_every_dtype_survives_a_world_of_one(solo: Group) -> None:
    for dtype in DTYPES:
        given = sample(dtype, (3, 7), dtype.name)
        assert solo.all_reduce(given, op="mean").wait().tobytes() == given.tobytes()


@pytest.mark.parametrize("dtype", ["complex64", "int16", ">f4", "M8[s]", "S3"])
def test_a_dtype_that_cannot_be_summed_is_a_type_error_but_can_be_moved(
    solo: Group, dtype: str
) -> None:
    given = np.zeros(4, dtype)
    with pytest.raises(TypeError, match=r"cannot be reduced; supported: float32, float64.*uint64"):
        solo.all_reduce(given)
    gathered = solo.all_gather(given).wait()
    assert (gathered.shape, gathered.dtype) == ((1, 4), given.dtype)
    assert gathered.tobytes() == given.tobytes()


def test_structured_values_are_moved_and_python_objects_are_not(solo: Group) -> None:
    given = np.array([(1, 2.5), (3, -0.0)], dtype=[("a", "i2"), ("b", "f8")])
    assert np.array_equal(solo.broadcast(given).wait(), given)
    with pytest.raises(TypeError, match="Python objects"):
        solo.broadcast(np.array([object()]))


@pytest.mark.parametrize("value", [[1.0, 2.0], 3.5, "text", None])
def test_what_is_no_array_is_a_type_error(solo: Group, value: object) -> None:
    with pytest.raises(TypeError, match="expected a NumPy array or an object with the buffer"):
        solo.all_reduce(value)


def test_out_receives_the_result_and_may_be_the_input(solo: Group) -> None:
    given = np.arange(1000, dtype=np.float32).reshape(10, 100)
    out = np.empty_like(given)
    assert solo.all_reduce(given, out=out).wait() is out
    assert np.array_equal(out, given)
    assert solo.all_reduce(given, op="mean", out=given).wait() is given
    assert np.array_equal(out, given)


def test_an_input_may_change_as_soon_as_it_is_submitted(solo: Group) -> None:
    given = np.ones(1 << 20, np.float32)
    work = solo.all_reduce(given)
    given[:] = 7
    assert np.all(work.wait() == 1)


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.empty(3, np.float64), "expected shape .4,. of float32"),
        (np.empty((2, 2), np.float32), "expected shape .4,. of float32"),
        (np.broadcast_to(np.float32(0), (4,)), "read-only"),
        (np.empty(8, np.float32)[::2], "expected a C-contiguous"),
    ],
)
def test_a_bad_out_is_a_value_error(solo: Group, out: Array, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        solo.all_reduce(np.zeros(4, np.float32), out=out)


@pytest.mark.parametrize("key", ["", "k" * 513, "ä" * 257])
def test_a_key_has_a_limit(solo: Group, key: str) -> None:
    with pytest.raises(ValueError, match="expected 1 to 512 bytes"):
        solo.all_reduce(np.zeros(1), key=key)


def test_the_longest_key_works(solo: Group) -> None:
    assert solo.all_reduce(np.ones(2), key="ä" * 256).wait().tolist() == [1, 1]


def test_bad_arguments_name_what_is_allowed(solo: Group) -> None:
    zeros = np.zeros(3, np.float64)
    with pytest.raises(
        ValueError, match="expected one of sum, mean, avg, min, max, prod, band, bor, bxor"
    ):
        solo.all_reduce(zeros, op="average")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected float32"):
        solo.all_reduce(zeros, wire_dtype="bfloat16")
    with pytest.raises(ValueError, match="expected one of float32, float16, bfloat16, int8"):
        solo.all_reduce(zeros.astype(np.float32), wire_dtype="int4")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected one of bfloat16, float8_e4m3fn"):
        solo.all_reduce(zeros, dtype="bfloat16")
    with pytest.raises(ValueError, match="expected a rank from 0 to 0"):
        solo.broadcast(zeros, root=1)
    with pytest.raises(ValueError, match="first axis must be divisible"):
        solo.reduce_scatter(np.array(1.0))
    with pytest.raises(ValueError, match="bytes above 0"):
        solo.all_reduce_many([zeros], fusion_threshold=0)


@pytest.mark.parametrize("dtype", [BFLOAT16, *FLOAT8], ids=lambda dtype: dtype.name)
def test_bits_in_integers_are_summed_as_what_they_are_declared(solo: Group, dtype: Any) -> None:
    given = sample(dtype, 100, "bits")
    held = given.view(f"u{dtype.itemsize}")
    result = solo.all_reduce(held, op="prod", dtype=dtype.name).wait()
    assert result.dtype == held.dtype
    assert result.tobytes() == given.tobytes()


@pytest.mark.parametrize("op", ["band", "bor", "bxor"])
def test_floats_have_no_bitwise_operations(solo: Group, op: Any) -> None:
    for dtype in (np.dtype("float32"), np.dtype("float64"), BFLOAT16, *FLOAT8):
        array = np.zeros(4, dtype)
        for call in (solo.all_reduce, solo.reduce_scatter):
            with pytest.raises(TypeError, match=f"'{op}' of {dtype.name}: expected integers"):
                call(array, op=op)
    with pytest.raises(TypeError, match=f"'{op}' of bfloat16"):
        solo.all_reduce(np.zeros(4, np.uint16), op=op, dtype="bfloat16")
    with pytest.raises(TypeError, match="expected float32, the only dtype"):
        solo.all_reduce(np.zeros(4, np.int32), op=op, wire_dtype="bfloat16")


def test_a_mean_of_bool_says_what_there_is(solo: Group) -> None:
    bits = np.array([True, False])
    for call in (solo.all_reduce, solo.reduce_scatter):
        with pytest.raises(
            TypeError, match=r"op='mean' of bool: expected sum, max .*astype\('float32'"
        ):
            call(bits, op="mean")
    with pytest.raises(TypeError, match="op='mean' of bool"):
        solo.all_reduce_many([np.ones(3), bits], op="mean")


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_a_16_bit_wire_rounds_once_to_the_nearest(solo: Group, wire: Any) -> None:
    given = sample(np.dtype(np.float32), 5000, wire)
    narrow = BFLOAT16 if wire == "bfloat16" else np.dtype(np.float16)
    result = solo.all_reduce(given, wire_dtype=wire).wait()
    assert result.dtype == np.float32
    assert np.array_equal(result, given.astype(narrow).astype(np.float32))


def test_fusion_keeps_order_shapes_and_dtypes(solo: Group) -> None:
    shapes: list[tuple[int, ...]] = [(3,), (0, 4), (), (100, 7), (5, 5)]
    arrays = [
        sample(dtype, shape, (dtype.name, shape))
        for shape in shapes
        for dtype in (DTYPES[0], DTYPES[6], BFLOAT16)
    ]
    for threshold in (1, 1000, 128 << 20):
        results = solo.all_reduce_many(arrays, fusion_threshold=threshold).wait()
        assert [r.shape for r in results] == [a.shape for a in arrays]
        assert [r.dtype for r in results] == [a.dtype for a in arrays]
        assert [r.tobytes() for r in results] == [a.tobytes() for a in arrays]
    assert solo.all_reduce_many([]).wait() == []


@pytest.mark.parametrize("threshold", [1, 128 << 20])
def test_many_arrays_are_written_to_out_before_the_callback(solo: Group, threshold: int) -> None:
    arrays = [sample(dtype, (50, 3), dtype.name) for dtype in (DTYPES[0], DTYPES[6])]
    out = [np.zeros_like(array) for array in arrays]
    seen: list[bytes] = []
    done = threading.Event()

    def look(work: Work[Any]) -> None:
        seen.extend(array.tobytes() for array in out)
        done.set()

    work = solo.all_reduce_many(arrays, fusion_threshold=threshold, out=out, on_done=look)
    assert done.wait(30)
    assert seen == [array.tobytes() for array in arrays]
    assert all(mine is given for mine, given in zip(work.wait(), out, strict=True))
    copies = [array.copy() for array in arrays]
    solo.all_reduce_many(copies, op="avg", out=copies).wait()
    assert [c.tobytes() for c in copies] == [a.tobytes() for a in arrays]
    called = threading.Event()
    solo.all_reduce_many([], on_done=lambda _: called.set())
    assert called.wait(30)
    with pytest.raises(ValueError, match="out: expected 2 arrays, got 1"):
        solo.all_reduce_many(arrays, out=out[:1])
    with pytest.raises(ValueError, match=r"out: expected shape \(50, 3\)"):
        solo.all_reduce_many(arrays, out=[out[0], np.zeros(3)])


def test_a_group_says_what_it_is(solo: Group) -> None:
    assert re.fullmatch(
        r"<Group job='[^']+' run='[^']+' rank=0 of 1, \d reducers, open>", repr(solo)
    )


def test_a_misspelt_name_is_guessed(solo: Group) -> None:
    with pytest.raises(ValueError, match="did you mean 'mean'"):
        solo.all_reduce(np.ones(3), op="maen")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'bfloat16'"):
        solo.all_reduce(np.ones(3, np.float32), wire_dtype="bflaot16")  # type: ignore[arg-type]
