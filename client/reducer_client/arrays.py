"""Conversion of the caller's arrays to the flat bytes that the engine reads and writes; no I/O."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def as_array(value: object) -> Array:
    """A NumPy view of an array, a buffer or an object with ``__array__``.

    Raises TypeError for masked arrays and for all other objects.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("masked arrays cannot be reduced: fill them first (array.filled(0))")
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(memoryview(cast(Any, value)))  # raises TypeError if it is no buffer
    except TypeError:
        if hasattr(value, "__array__"):
            return np.asarray(value)
    raise TypeError(
        f"expected a NumPy array or an object with the buffer protocol, got {type(value).__name__}"
    )


def flat_bytes(array: Array) -> memoryview:
    """The elements in C order as flat uint8. Copies only non-contiguous or unaligned arrays."""
    is_plain = array.flags.c_contiguous and array.flags.aligned
    contiguous = array if is_plain else np.require(array, requirements=("C", "A"))
    contiguous = contiguous.reshape(-1)
    if contiguous.size == 0 or contiguous.dtype.itemsize == 0:
        return memoryview(bytearray())
    return contiguous.view(np.uint8).data


def apart(source: Array | None, target: Array | None) -> Array | None:
    """The source, or a copy if the source and the target partly overlap.

    The engine reads and writes chunk by chunk. With a partial overlap, a result could overwrite
    elements that the engine has not read yet. A target that is exactly the source is safe.
    """
    if source is None or target is None or not np.may_share_memory(source, target):
        return source
    if source is target:  # targets are contiguous
        return source
    same = source.ctypes.data == target.ctypes.data and source.nbytes == target.nbytes
    return source if same and source.flags.c_contiguous else source.copy()


def target_array(out: object | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The array for a result of this shape and dtype: ``out``, or a new array if it is None.

    Raises TypeError or ValueError if ``out`` cannot take the result.
    """
    if out is None:
        return np.empty(shape, dtype)
    array = as_array(out)
    # Each call of __array__ may make a copy.
    if array is not out and array.ctypes.data != as_array(out).ctypes.data:
        raise TypeError(
            f"out: expected a NumPy array or a buffer, got {type(out).__name__}, whose __array__ "
            "makes a new array each time and cannot take the result"
        )
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"out: expected shape {shape} of {dtype}, got shape {array.shape} of {array.dtype}"
        )
    if not array.flags.writeable:
        raise ValueError("out: expected a writable array, got a read-only one")
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ValueError(
            "out: expected a C-contiguous, aligned array; reduce into a new array and copy the "
            "result"
        )
    return array


def check_movable(dtype: np.dtype[Any]) -> None:
    """Raise TypeError if the dtype holds Python objects, which other processes cannot read."""
    if dtype.hasobject:
        raise TypeError(f"arrays of {dtype} hold Python objects and cannot be sent")
