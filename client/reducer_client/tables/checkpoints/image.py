"""Images of tables: the part of a table that a checkpoint holds, as plain data and flat arrays."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from reducer.optimizers import Optimizer
from reducer_client.tables.checkpoints.errors import CheckpointError

Vector: TypeAlias = npt.NDArray[np.float32]
Tensors: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


class Place(NamedTuple):
    """The place of a stored tensor: in the parameters or in a slot, from element ``start`` on."""

    slot: str | None
    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """A table without its arrays. Raises CheckpointError if a manifest cannot hold a field."""

    name: str
    tensors: Tensors
    optimizer: Optimizer
    mode: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("the name of a table", self.name)
        object.__setattr__(self, "tensors", _as_tensors(f"table {self.name!r}", self.tensors))
        for part in ("mode", "state"):
            _check_plain(f"table {self.name!r}: {part}", getattr(self, part))

    @property
    def count(self) -> int:
        """The number of elements of the parameters, and of each slot."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.optimizer.slots)

    def places(self) -> Iterator[tuple[str, Place]]:
        """The name of each stored tensor with its place: all parameters first, then each slot."""
        for slot in (None, *self.slots):
            start = 0
            for tensor, shape in self.tensors:
                name = f"{self.name}/{tensor}" + (f":{slot}" if slot else "")
                yield name, Place(slot, start, shape)
                start += math.prod(shape)


@dataclass(frozen=True, eq=False)
class TableImage:
    """A table at one moment: its description, and the values of all its elements.

    Attributes:
        name: the name of the table.
        tensors: the name and the shape of each tensor, in the order of their elements.
        optimizer: the optimizer, whose slots the image has.
        parameters: float32, shape (count,): the tensors one after another, each in C order.
        slots: maps the name of each slot of the optimizer to an array like ``parameters``.
        mode: the fields of the table's mode, as plain JSON values.
        state: the caller's own data, as plain JSON values: versions and element ranges of shards,
            the number of the step, the learning rate, clocks.

    The arrays are not copied: do not change them while a save is under way. Raises CheckpointError
    if a name is empty or given twice, if an array has another dtype or shape, if the slots are not
    the optimizer's, or if JSON would change ``mode`` or ``state``.
    """

    name: str
    tensors: Tensors
    optimizer: Optimizer
    parameters: Vector
    slots: Mapping[str, Vector] = field(default_factory=dict)
    mode: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        description = self.description
        object.__setattr__(self, "tensors", description.tensors)
        who = f"table {self.name!r}"
        if sorted(self.slots) != sorted(description.slots):
            raise CheckpointError(
                f"{who}: {self.optimizer.NAME} has the slots {_listed(description.slots)}, "
                f"got the slots {_listed(self.slots)}"
            )
        _check_vector(f"{who}: parameters", self.parameters, description.count)
        for slot, vector in self.slots.items():
            _check_vector(f"{who}: slot {slot!r}", vector, description.count)

    @property
    def description(self) -> Description:
        return Description(self.name, self.tensors, self.optimizer, self.mode, self.state)

    @property
    def count(self) -> int:
        """The number of elements of the parameters, and of each slot."""
        return len(self.parameters)

    def stored(self) -> Iterator[tuple[str, Vector]]:
        """The name and a view of each tensor that a checkpoint stores, in its true shape."""
        for name, place in self.description.places():
            vector = self.parameters if place.slot is None else self.slots[place.slot]
            yield name, part_of(vector, place)


def part_of(vector: Vector, place: Place) -> Vector:
    """The elements of a place, as a view in the tensor's shape."""
    return vector[place.start : place.start + math.prod(place.shape)].reshape(place.shape)


def as_index(what: str, value: SupportsIndex, least: int) -> int:
    """The value as int; raises CheckpointError if it is no integer, or below ``least``."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not least <= number < 1 << 63:
        raise CheckpointError(f"{what} must be an integer from {least} on, got {value!r:.60}")
    return number


def _as_tensors(who: str, tensors: Any) -> Tensors:
    found: dict[str, tuple[int, ...]] = {}
    for pair in tensors:
        try:
            name, shape = pair
            shape = tuple(shape)
        except (TypeError, ValueError):
            raise CheckpointError(
                f"{who}: expected pairs of a tensor's name and shape, got {pair!r:.60}"
            ) from None
        _check_name(f"{who}: the name of a tensor", name)
        if name in found:
            raise CheckpointError(f"{who}: the tensor {name!r:.60} is given twice")
        found[name] = tuple(as_index(f"{who}: a size of {name!r:.60}", n, 0) for n in shape)
    return tuple(found.items())


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{what} must be a text that is not empty, got {name!r:.60}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise CheckpointError(
            f"{what} must be text that UTF-8 can hold, got {name!r:.60}"
        ) from None


def _check_plain(what: str, value: Any) -> None:
    """Raises CheckpointError if JSON would change the value: tuples, NaN, keys that are no text."""
    try:
        same = isinstance(value, Mapping) and json.loads(as_json(dict(value))) == dict(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} must consist of plain JSON values: {error}") from None
    if not same:
        raise CheckpointError(
            f"{what} must be a mapping of plain JSON values (text keys, lists instead of tuples), "
            f"got {value!r:.80}"
        )


def as_json(value: Any) -> str:
    """JSON that is the same text for equal values. Raises ValueError for NaN and infinities."""
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _check_vector(what: str, vector: object, count: int) -> None:
    if not isinstance(vector, np.ndarray):
        got = type(vector).__name__
    elif vector.dtype != np.float32 or vector.shape != (count,) or not vector.flags.c_contiguous:
        layout = "" if vector.flags.c_contiguous else ", not contiguous"
        got = f"{vector.dtype} of shape {vector.shape}{layout}"
    else:
        return
    raise CheckpointError(
        f"{what} must be a contiguous float32 array of shape ({count},), got {got}"
    )


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "none"
