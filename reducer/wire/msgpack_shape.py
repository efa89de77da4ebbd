"""Checks the shape of a msgpack value before the value is unpacked.

A few bytes can claim four billion items, or nest deeper than a parser's stack allows. This check
reads only type bytes and lengths, allocates nothing for the claimed items, and refuses extension
types, which control frames never contain. Format: the msgpack specification, "Formats".
"""

from __future__ import annotations

from typing import Final

from reducer.wire.errors import BadFrameError
from reducer.wire.header import Buffer

# Type byte -> size of the value that follows.
_SCALARS: Final = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
}  # fmt: skip
# By type byte: the size of the value that follows a number, true, false or null; else _OTHER.
_OTHER: Final = 0xFF
_WIDTHS: Final = tuple(
    0 if kind <= 0x7F or kind >= 0xE0 else _SCALARS.get(kind, _OTHER) for kind in range(256)
)
_LENGTHS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}


def check_shape(data: Buffer, max_depth: int, max_items: int, max_values: int) -> list[int]:
    """Raises BadFrameError unless `data` is exactly one msgpack value within the limits.

    `max_values` limits the number of values in total, and so the time that one frame takes.

    Returns the offset of each item of the outermost list, or of each key and value of the outermost
    map in turn, and then the end of the last one.
    """
    data = bytes(data)
    waiting = [1]
    places: list[int] = []
    at = seen = 0
    while waiting:
        if waiting[-1] == 0:
            waiting.pop()
            continue
        if len(waiting) == 2:
            places.append(at)
        else:  # a list by slot has thousands of numbers
            at, count = _skip_numbers(data, at, min(waiting[-1], max_values - seen))
            waiting[-1] -= count
            seen += count
            if count:
                continue
        waiting[-1] -= 1
        seen += 1
        if seen > max_values:
            raise BadFrameError(f"a control frame holds over {max_values} values")
        at, items, values = _step(data, at)
        if items > max_items:
            raise BadFrameError(f"a list or map in a control frame claims over {max_items} items")
        if items:
            waiting.append(items * values)
        if len(waiting) > max_depth + 1:
            raise BadFrameError(f"a control frame is nested deeper than {max_depth} levels")
    if at != len(data):
        raise BadFrameError(f"{len(data) - at} bytes follow the map of a control frame")
    places.append(at)
    return places


def is_map(data: Buffer) -> bool:
    """Whether the value that begins `data` is a map."""
    return len(data) > 0 and (0x80 <= data[0] <= 0x8F or data[0] in _MAPS)


def _skip_numbers(data: Buffer, at: int, most: int) -> tuple[int, int]:
    """Skip numbers, true, false and null, `most` at most. Returns the next offset and the count."""
    end, count = len(data), 0
    while count < most and at < end and (width := _WIDTHS[data[at]]) != _OTHER:
        at += 1 + width
        count += 1
    return _skip(data, at, 0), count


def _step(data: Buffer, at: int) -> tuple[int, int, int]:
    """Skip the head of a value, and the body unless the value is a list or map.

    Returns the next offset, the number of items of a list or map, and the values per item.
    """
    kind = _number(data, at, 1)
    at += 1
    if kind <= 0x7F or kind >= 0xE0:
        return at, 0, 0
    if kind <= 0x8F:
        return at, kind & 0x0F, 2
    if kind <= 0x9F:
        return at, kind & 0x0F, 1
    if kind <= 0xBF:
        return _skip(data, at, kind & 0x1F), 0, 0
    if kind in _SCALARS:
        return _skip(data, at, _SCALARS[kind]), 0, 0
    if kind in _LENGTHS:
        width = _LENGTHS[kind]
        return _skip(data, at + width, _number(data, at, width)), 0, 0
    if kind in _ARRAYS:
        width = _ARRAYS[kind]
        return at + width, _number(data, at, width), 1
    if kind in _MAPS:
        width = _MAPS[kind]
        return at + width, _number(data, at, width), 2
    raise BadFrameError(f"a control frame holds the msgpack type {kind:#x}, which is not allowed")


def _number(data: Buffer, at: int, width: int) -> int:
    _skip(data, at, width)
    if width == 1:
        return data[at]
    return int.from_bytes(data[at : at + width], "big")


def _skip(data: Buffer, at: int, size: int) -> int:
    if at + size > len(data):
        raise BadFrameError(
            f"a control frame is cut short: its map continues after the last byte, byte {len(data)}"
        )
    return at + size
