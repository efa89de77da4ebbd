"""Announcements as bytes: requests, and small numbers for requests that were announced before.

The numbers follow from the announcements of all ranks in their order, so all ranks give the same
ones, as long as they see the same contributions and have the same capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]  # ships no annotations

from reducer_client.horovod.requests import Request, from_wire


class RequestCache:
    """The last ``capacity`` requests, by when they were announced, and their numbers."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._numbers: OrderedDict[Request, int] = OrderedDict()
        self._requests: dict[int, Request] = {}
        self._next = 0

    def see(self, request: Request) -> None:
        """It was announced: called for the same requests in the same order on every rank."""
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
        """A list of requests and of ``[first, count]``: so many known ones from that number on."""
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
                items.append(run)  # grows in its place
        packed: bytes = msgpack.packb(items)
        return packed

    def decode(self, announced: bytes) -> list[Request]:
        """The requests of `encode` of a rank whose cache has seen the same."""
        requests: list[Request] = []
        for item in msgpack.unpackb(announced):
            if len(item) == 2:
                first, count = item
                requests += [self._requests[n] for n in range(first, first + count)]
            else:
                requests.append(from_wire(item))
        return requests

    def decode_all(self, announced: Sequence[bytes]) -> list[list[Request]]:
        """Of all ranks, who have announced with the cache as it is now; then it sees them."""
        decoded = [self.decode(one) for one in announced]
        for requests in decoded:
            for request in requests:
                self.see(request)
        return decoded
