"""Announcements as bytes. A request that was announced before is encoded as a number.

The numbers follow from the announcements of all ranks in their order. All ranks see the same
announcements and have the same capacity, so all ranks assign the same numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]  # has no annotations

from reducer_client.horovod.requests import Request, from_wire


class RequestCache:
    """The ``capacity`` most recently announced requests, and their numbers."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._numbers: OrderedDict[Request, int] = OrderedDict()
        self._requests: dict[int, Request] = {}
        self._next = 0

    def record(self, request: Request) -> None:
        """Record that a request was announced.

        Every rank must record the same requests in the same order.
        """
        if request in self._numbers:
            self._numbers.move_to_end(request)
            return
        self._numbers[request] = self._next
        self._requests[self._next] = request
        self._next += 1
        if len(self._numbers) > self._capacity:
            _, number = self._numbers.popitem(last=False)
            del self._requests[number]

    def encode(self, requests: Iterable[Request]) -> bytes:
        """A list of new requests, and of ``[first, count]`` for runs of known numbers, as bytes."""
        items: list[list[Any]] = []
        run: list[int] = []
        for request in requests:
            number = self._numbers.get(request)
            if number is None:
                items.append(request.to_wire())
                run = []
            elif run and number == run[0] + run[1]:
                run[1] += 1
            else:
                run = [number, 1]
                items.append(run)  # `run` grows inside the list
        packed: bytes = msgpack.packb(items)
        return packed

    def decode(self, announced: bytes) -> list[Request]:
        """The requests that `encode` encoded on a rank with the same records."""
        requests: list[Request] = []
        for item in msgpack.unpackb(announced):
            if len(item) == 2:
                first, count = item
                requests += [self._requests[n] for n in range(first, first + count)]
            else:
                requests.append(from_wire(item))
        return requests

    def decode_all(self, announced: Sequence[bytes]) -> list[list[Request]]:
        """Decode the announcements of all ranks for one round, then record their requests."""
        decoded = [self.decode(one) for one in announced]
        for requests in decoded:
            for request in requests:
                self.record(request)
        return decoded
