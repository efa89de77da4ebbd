"""All-reduce in two levels: the ranks of a host among themselves, then the hosts.

A host's NIC carries the gradients once each way, not once for each of its ranks. Every rank owns a
shard: it adds up its neighbours' parts of it, has the sum reduced over the ranks with its number on
the other hosts, by the reducers, and hands the result to its neighbours. So all ranks of a host
share the work.

The law of the sum: both levels fold in rank order with the reducers' kernels, and each rounds once.
A result is a pure function of the contributions and of how many ranks a host has: the same bits on
all ranks and in every run. They are other bits than those of the sum over all ranks at once, which
rounds elsewhere. A mean divides on each level, by the ranks of a host and by the hosts: sums that
would not fit a 16-bit float never exist. Where a host has 2, 4 or 8 ranks the first division is
exact but for subnormal numbers, so that the mean is that of dividing once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import Store

from reducer import kernels
from reducer.wire.codes import ITEM_SIZES, DType
from reducer_client.arrays import Array, as_array, target_array
from reducer_client.debug import join_logger
from reducer_client.dtypes import Op, WireDtype, find_op, find_reduction, narrow_to
from reducer_client.errors import ClosedError, MismatchError, NumericError, ReducerError
from reducer_client.group import Group
from reducer_client.torch.hierarchy.all_reduce import SHARD_BYTES, AllReduce, Piece, as_seconds
from reducer_client.torch.hierarchy.first_error import find_cause, pack_error, unpack_error
from reducer_client.torch.hierarchy.host_group import HostGroup
from reducer_client.torch.hierarchy.layout import Layout, agree
from reducer_client.torch.hierarchy.step_thread import StepThread
from reducer_client.work import Timeout, Work

# Joins a group over some ranks of a job: (its name, rank, world size).
Connect = Callable[[str, int, int], Group]

# Smaller arrays go over all ranks at once: what a host's ranks tell each other costs more than what
# it saves. At 1 Gbit both take as long at 1 MiB, and flat is 3 times as fast at 256 KiB
# (bench.hierarchy, 2 hosts x 2 ranks, all on two cores).
LEAST_BYTES = 1 << 20
_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)


def open_hierarchy(
    group: Group,
    store: Store,
    connect: Connect,
    *,
    name: str = "hierarchy",
    wanted: bool | None = None,
    timeout: float = 300.0,
) -> Hierarchy | None:
    """The hierarchy of a group's ranks; None where their hosts do not allow one. All ranks call it.

    Args:
        group: of all ranks. What is too small for a hierarchy goes over it.
        store: where the ranks of a host meet; all ranks share it.
        connect: joins the group over the hosts, which has a name for each local rank.
        name: of the hierarchy; begins its keys and the names of its groups.
        wanted: False: none; True: ValueError on all ranks where the hosts do not allow one.
        timeout: seconds that a call has where it does not say.
    """
    layout, why_not = agree(group, name, wanted)
    if layout is None:
        if group.rank == 0:
            join_logger.info("no hierarchy: %s", why_not)
        return None
    if group.rank == 0:
        join_logger.info("hierarchy: %d hosts of %d ranks", layout.hosts, layout.local_size)
    host_groups = [
        HostGroup(store, f"{name}/{stage}", layout, timeout) for stage in ("exchange", "collect")
    ]
    across = connect(f"{name}/local{layout.local_rank}", layout.host, layout.hosts)
    return Hierarchy(layout, group, across, host_groups, name=name, timeout=timeout)


class Hierarchy:
    """Made by `open_hierarchy`. The calls of a host's ranks come in the same order on all of them.

    ``all_reduce`` is that of a group. The exchange on the host, the network, and the handing out on
    the host are under way at once, each with another part of an array or with another array; beside
    the arrays there is memory for one piece, of a few MiB for each rank of a host. An error that a
    round alone has (NumericError, MismatchError between hosts) is that call's; after every other
    one the hierarchy is at an end, on all ranks.
    """

    def __init__(
        self,
        layout: Layout,
        group: Group,
        across: Group,
        host_groups: Sequence[HostGroup],
        *,
        name: str,
        timeout: float,
    ) -> None:
        self.layout = layout
        self._group = group
        self._across = across
        self._inward, self._outward = host_groups
        self._name = name
        self._timeout = timeout
        self._kernels = kernels.load()
        self._received = torch.empty(
            layout.local_size, SHARD_BYTES, dtype=torch.uint8, device="cpu"
        )
        self._failure: ReducerError | None = None
        self._lock = threading.Lock()
        self._open = 0
        self._idle = threading.Condition(self._lock)
        self._exchanging = StepThread("reducer-exchange")
        self._collecting = StepThread("reducer-collect")
        self._callbacks = StepThread("reducer-callbacks")

    @property
    def step_timeout(self) -> float | None:
        """That of the group over all ranks."""
        return self._group.step_timeout

    def all_reduce(
        self,
        array: object,
        op: Op = "sum",
        key: str | None = None,
        out: object | None = None,
        wire_dtype: WireDtype | None = None,
        *,
        dtype: str | None = None,
        flat_key: str | None = None,
        priority: int = 0,
        on_done: Callable[[Any], None] | None = None,
        timeout: Timeout | None = None,
    ) -> Work[Array] | AllReduce:
        """Like `Group.all_reduce`. Floats of at least LEAST_BYTES go through the hierarchy.

        Args:
            flat_key: the key of a call that does not take it; by default ``key``.
        """
        source = as_array(array)
        _, wire = find_reduction(op, source.dtype, dtype)
        narrow_to(wire, wire_dtype)
        if wire not in _FLOATS or source.nbytes < LEAST_BYTES:
            return self._group.all_reduce(
                source,
                op,
                flat_key or key,
                out,
                wire_dtype,
                dtype=dtype,
                priority=priority,
                on_done=on_done,
                timeout=timeout,
            )
        result = target_array(out, source.shape, source.dtype)
        if result is not source:
            np.copyto(result, source)
        call = AllReduce(
            key or self._name,
            op,
            wire,
            result,
            wire_dtype=wire_dtype,
            dtype=dtype,
            limit=as_seconds(self._timeout if timeout is None else timeout),
            on_done=on_done,
        )
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._exchanging.put(partial(self._exchange, call))
            self._open += 1
        return call

    def close(self, timeout: float = 10.0) -> None:
        """Finish the open calls within ``timeout`` seconds, and leave the group over the hosts.

        The group over all ranks stays as it is.
        """
        with self._lock:
            in_time = self._idle.wait_for(lambda: self._open == 0, timeout)
        ended = ClosedError(f"hierarchy {self._name!r} was closed", reason="closed")
        if in_time:
            with self._lock:
                self._failure = self._failure or ended
            self._across.close(timeout)
        else:
            self._end_connections(ended)
        for stage in (self._exchanging, self._collecting, self._callbacks):
            stage.stop()

    def abort(self) -> None:
        """Leave at once; the other ranks fail."""
        self._end_connections(ClosedError(f"hierarchy {self._name!r} was aborted", reason="closed"))
        for stage in (self._exchanging, self._collecting, self._callbacks):
            stage.stop()

    # On the exchange thread.

    def _exchange(self, call: AllReduce) -> None:
        try:
            if self._failure is None:
                self._compare(call)
                for number, piece in enumerate(call.pieces(self.layout.local_size)):
                    work = self._fold(call, number, piece)
                    self._collecting.put(partial(self._collect, call, piece, work))
            self._collecting.put(partial(self._finish, call))
        except Exception as error:
            self._fail(call, error)

    def _fail(self, call: AllReduce, error: Exception) -> None:
        """The exchange of a call has failed: the collect thread ends the hierarchy and the call."""
        try:
            self._collecting.put(partial(self._break_and_finish, error, call))
        except Exception as no_memory:
            self._end_connections(ReducerError(f"{type(error).__name__}: {error}; {no_memory}"))
            self._finish(call)

    def _compare(self, call: AllReduce) -> None:
        """Gloo ends the process where sizes differ; so they are compared first."""
        texts = self._inward.tell(call.describe(), call.left)
        if len(set(texts)) > 1:
            said = (f"rank {self.layout.neighbour(r)} {t.decode()}" for r, t in enumerate(texts))
            raise MismatchError(
                f"the ranks of a host called all_reduce differently: {'; '.join(said)}",
                key=call.key,
                reason="neighbour",
            )

    def _fold(self, call: AllReduce, number: int, piece: Piece) -> Work[Array]:
        """Our shard of a piece, folded over this host, in its place; then on its way."""
        own = piece[self.layout.local_rank]
        parts = [row[: own.numel()] for row in self._received]
        parts[self.layout.local_rank] = own
        self._inward.swap(piece, parts, call.left)
        shard = own.numpy()
        self._kernels.finish(
            find_op(call.op),
            call.wire,
            shard.nbytes // ITEM_SIZES[call.wire],
            len(parts),
            None,
            [part.numpy().data for part in parts],
            shard.data,
        )
        values = shard.view(call.result.dtype)
        key = f"{number}/{call.key}"  # nothing but pieces goes over this group
        try:
            return self._across.all_reduce(
                values, call.op, key, values, call.wire_dtype, dtype=call.dtype
            )
        except ReducerError as error:
            raise self._of_hosts(error) from None

    # On the collect thread, which alone finishes calls.

    def _collect(self, call: AllReduce, piece: Piece, work: Work[Array]) -> None:
        if self._failure is not None:
            return
        try:
            self._wait(call, work)
            own = piece[self.layout.local_rank]
            self._outward.swap([own] * len(piece), piece, call.left)
        except Exception as error:
            self._break(error)

    def _wait(self, call: AllReduce, work: Work[Array]) -> None:
        try:
            work.wait(max(call.left(), 0.0))
        except (MismatchError, NumericError) as error:
            # The neighbours wait for our shard; that it is none they hear at the end of the call.
            call.error = call.error or self._of_hosts(error)
        except ReducerError as error:
            raise self._of_hosts(error) from None

    def _finish(self, call: AllReduce) -> None:
        if self._failure is None:
            try:
                told = self._outward.tell(pack_error(call.error), call.left)
                call.error = next((unpack_error(t) for t in told if t), None)
            except Exception as error:
                self._break(error)
        call.error = self._failure or call.error
        try:
            call.finish(self._callbacks)
        finally:
            with self._idle:
                self._open -= 1
                self._idle.notify_all()

    def _break_and_finish(self, error: Exception, call: AllReduce) -> None:
        self._break(error)
        self._finish(call)

    def _break(self, error: Exception) -> None:
        """The end on all ranks; they tell each other why, over the group of all."""
        if self._failure is not None:
            return
        if not isinstance(error, ReducerError):
            error = ReducerError(f"{type(error).__name__}: {error}")
        self._end_connections(error)
        self._failure = find_cause(self._group, f"{self._name}/first-error", error)

    def _end_connections(self, why: ReducerError) -> None:
        with self._lock:
            self._failure = self._failure or why
        self._inward.abort()
        self._outward.abort()
        self._across.abort()

    def _of_hosts(self, error: ReducerError) -> ReducerError:
        """For a rank the group over the hosts has the number of a host."""
        rank = None if error.rank is None else self.layout.counterpart(error.rank)
        who = "" if rank is None else f"rank {rank}: "
        return type(error)(
            f"{who}{error} (between the hosts, whose numbers stand for ranks here)",
            rank=rank,
            round=error.round,
            key=error.key,
            reason=error.reason,
        )
