"""Places each tensor of a table in a vector, and cuts the vector into shards.

All functions are pure functions of the tensors' shapes and the number of partitions: all workers
must compute the same layout.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Any

import msgpack  # type: ignore[import-untyped]  # ships no stubs
import numpy as np
import numpy.typing as npt

from reducer.wire.codes import MAX_TABLE_ELEMENTS, MAX_TENSORS_BYTES, SHARD_ALIGNMENT
from reducer.wire.keys import key_id
from reducer_client.arrays import Array, as_array
from reducer_client.errors import ProtocolError

Vector = npt.NDArray[np.float32]

FLOAT32 = np.dtype(np.float32)
LARGEST_SHARD = 256 << 10  # elements: 1 MiB
LEAST_SHARD = 1 << 10  # elements: header and latency dominate the cost of smaller frames
_MOST_UNPACKED = 1 << 24  # bytes of the tensors' names and shapes that a lane may make us unpack


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The tensors of a table, one behind the other in C order, and the shards of their vector.

    ``shard``: the elements of each shard, except that the last one may be shorter.
    """

    name: str
    tensors: tuple[Tensor, ...]
    partitions: int
    shard: int

    @cached_property
    def count(self) -> int:
        """The elements of the vector."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def key(self) -> int:
        """The table's number in frames."""
        return key_id(self.name)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The first element of each tensor."""
        found, at = [], 0
        for tensor in self.tensors:
            found.append(at)
            at += tensor.size
        return tuple(found)

    @cached_property
    def shards(self) -> int:
        return ceil(self.count / self.shard)

    def place(self, shard: int) -> slice:
        """The elements of a shard."""
        return slice(shard * self.shard, min(self.count, (shard + 1) * self.shard))

    def partition(self, shard: int) -> int:
        """The number of the lane that has a shard."""
        return (self.key + shard) % self.partitions

    @cached_property
    def owner(self) -> int:
        """The partition that owns the steps: it has shard 0."""
        return self.partition(0)

    @cached_property
    def by_partition(self) -> tuple[tuple[int, ...], ...]:
        """The shards of each partition, ascending."""
        found: list[list[int]] = [[] for _ in range(self.partitions)]
        for shard in range(self.shards):
            found[self.partition(shard)].append(shard)
        return tuple(map(tuple, found))

    @cached_property
    def packed_tensors(self) -> bytes:
        """The names and shapes for the table's description.

        Raises ValueError if they need more bytes than a description may have.
        """
        plain: bytes = msgpack.packb([[t.name, list(t.shape)] for t in self.tensors])
        # All workers must send the same bytes, and builds of zlib differ in how they compress. So
        # a list that fits is stored uncompressed.
        packed = zlib.compress(plain, 0)
        if len(packed) > MAX_TENSORS_BYTES:
            packed = zlib.compress(plain, 9)
        if len(packed) > MAX_TENSORS_BYTES:
            raise ValueError(
                f"table {self.name!r}: the names and shapes of {len(self.tensors)} tensors need "
                f"{len(packed)} bytes, the limit is {MAX_TENSORS_BYTES}: use shorter names, or "
                "several tables"
            )
        return packed

    def empty_vector(self) -> Vector:
        return np.empty(self.count, np.float32)

    def views(self, flat: Vector) -> dict[str, Vector]:
        """Each tensor as a view of a vector."""
        return {
            tensor.name: flat[at : at + tensor.size].reshape(tensor.shape)
            for tensor, at in zip(self.tensors, self.offsets, strict=True)
        }

    def copy_in(self, arrays: Iterable[Array], flat: Vector) -> None:
        """Copy checked arrays, in the order of the tensors, into a vector."""
        for tensor, at, array in zip(self.tensors, self.offsets, arrays, strict=True):
            flat[at : at + tensor.size].reshape(tensor.shape)[...] = array

    def copy_out(self, flat: Vector, arrays: Iterable[Array]) -> None:
        """Copy a vector into checked arrays, in the order of the tensors."""
        for tensor, at, array in zip(self.tensors, self.offsets, arrays, strict=True):
            array[...] = flat[at : at + tensor.size].reshape(tensor.shape)

    def check(self, what: str, given: Mapping[str, object]) -> list[Array]:
        """The arrays in the order of the tensors.

        Raises ValueError for missing and unknown names and for wrong shapes, TypeError for dtypes
        other than float32. ``what`` names the arrays in the error's text.
        """
        where = f"{what} of table {self.name!r}"
        if len(given) != len(self.tensors) or any(t.name not in given for t in self.tensors):
            raise ValueError(f"{where}: {_names_that_differ(self.tensors, given)}")
        arrays = []
        for tensor in self.tensors:
            array = _float32(f"{where}: tensor {tensor.name!r}", given[tensor.name])
            if array.shape != tensor.shape:
                raise ValueError(
                    f"{where}: tensor {tensor.name!r}: expected shape {tensor.shape}, got "
                    f"{array.shape}"
                )
            arrays.append(array)
        return arrays

    def as_vector(self, arrays: list[Array]) -> Vector | None:
        """One vector over checked arrays, if they are adjacent in memory; else None."""
        if not arrays:
            return None
        begin = _address(arrays[0])
        for array, at in zip(arrays, self.offsets, strict=True):
            if not array.flags.c_contiguous or (array.size and _address(array) != begin + 4 * at):
                return None
        whole: Vector = np.lib.stride_tricks.as_strided(
            arrays[0].reshape(-1), (self.count,), (FLOAT32.itemsize,)
        )
        return whole


def make_layout(name: str, tensors: Iterable[Tensor], partitions: int) -> Layout:
    """The layout of a new table. Raises ValueError if there is no element, or if there are too many
    elements.
    """
    found = tuple(tensors)
    count = sum(tensor.size for tensor in found)
    if not 1 <= count <= MAX_TABLE_ELEMENTS:
        raise ValueError(
            f"table {name!r}: expected 1 to {MAX_TABLE_ELEMENTS:,} elements, got {count:,}"
        )
    layout = Layout(name, found, partitions, shard_size(count, partitions))
    _ = layout.packed_tensors  # raises
    return layout


def shard_size(count: int, partitions: int) -> int:
    """Elements of a shard: all partitions get equally many shards of nearly equal size, as far as
    the least shard allows it.
    """
    each = ceil(count / (partitions * LARGEST_SHARD))  # shards of a partition
    size = max(LEAST_SHARD, ceil(count / (partitions * each)))
    return ceil(size / SHARD_ALIGNMENT) * SHARD_ALIGNMENT


def find_tensors(name: str, given: object) -> tuple[tuple[Tensor, ...], list[Array]]:
    """The tensors and arrays of ``{"name": array}`` or of pairs (name, array).

    Raises TypeError for other things and dtypes, ValueError for a name that comes twice.
    """
    pairs: Any = given.items() if isinstance(given, Mapping) else given
    tensors: dict[str, Tensor] = {}
    arrays = []
    try:
        listed = [(key, value) for key, value in pairs]
    except (TypeError, ValueError):
        raise TypeError(
            f"table {name!r}: expected {{name: array}} or pairs (name, array), got "
            f"{type(given).__name__}"
        ) from None
    for key, value in listed:
        if not isinstance(key, str):
            raise TypeError(f"table {name!r}: a tensor's name must be a string, got {key!r:.60}")
        if key in tensors:
            raise ValueError(f"table {name!r}: two tensors have the name {key!r}")
        array = _float32(f"table {name!r}: tensor {key!r}", value)
        tensors[key] = Tensor(key, array.shape)
        arrays.append(array)
    return tuple(tensors.values()), arrays


def unpack_tensors(packed: bytes) -> tuple[Tensor, ...]:
    """The tensors in a description that a lane sent. Raises ProtocolError."""
    try:
        inflate = zlib.decompressobj()
        plain = inflate.decompress(packed, _MOST_UNPACKED)
        if not inflate.eof:
            raise ValueError("too long")
        return tuple(
            Tensor(str(name), tuple(int(size) for size in shape))
            for name, shape in msgpack.unpackb(plain)
        )
    except (ValueError, TypeError, zlib.error) as error:
        raise ProtocolError(
            f"a table's list of tensors cannot be read ({error}): was the table made by this "
            "client's parameter_server?"
        ) from None


def _float32(where: str, value: object) -> Array:
    try:
        array = as_array(value)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from None
    if array.dtype != FLOAT32:
        raise TypeError(
            f"{where}: expected float32, got {array.dtype}: convert it (astype(numpy.float32))"
        )
    return array


def _names_that_differ(tensors: tuple[Tensor, ...], given: Mapping[str, object]) -> str:
    known = {tensor.name for tensor in tensors}
    parts = []
    if missing := [tensor.name for tensor in tensors if tensor.name not in given]:
        parts.append(f"missing: {_listed(missing)}")
    if unknown := [str(name) for name in given if name not in known]:
        parts.append(f"unknown: {_listed(unknown)}")
    return f"expected exactly its {len(tensors)} tensors; {'; '.join(parts)}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
