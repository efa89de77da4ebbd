"""All-reduce in two levels: among the ranks of each host, then among the hosts.

The NIC of a host carries the gradients once in each direction, and not once for each rank. Every
rank owns a shard. It sums the shard over the ranks of its host, reduces this sum on the reducers
with the ranks of the same local rank on the other hosts, and sends the result to the ranks of its
host. So all ranks of a host share the work.

Law of the sum: both levels add in rank order with the reducers' kernels, and each level rounds
once. A result is a pure function of the contributions and of the number of ranks per host, so the
bits are the same on all ranks and in every run. They differ from the bits of one sum over all
ranks, which rounds in other places. A mean divides on both levels, first by the ranks of a host and
then by the hosts, so that no intermediate sum overflows a 16-bit float. With 2, 4 or 8 ranks per
host the first division is exact except for subnormal numbers, so the mean has the bits that a
single division gives.
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
from reducer_client.feedback import feedback_of
from reducer_client.group import Group
from reducer_client.torch.hierarchy.all_reduce import SHARD_BYTES, AllReduce, Piece
from reducer_client.torch.hierarchy.first_error import find_cause, pack_error, unpack_error
from reducer_client.torch.hierarchy.host_group import HostGroup
from reducer_client.torch.hierarchy.layout import Layout, agree
from reducer_client.torch.hierarchy.step_thread import StepThread
from reducer_client.work import Timeout, Work, as_seconds

# Joins a group over some ranks of a job: (its name, rank, world size).
Connect = Callable[[str, int, int], Group]

# Smaller arrays are reduced over all ranks at once, because the exchange within the host costs more
# than it saves. On 1 Gbit/s both ways take equally long at 1 MiB, and the flat way is 3 times as
# fast at 256 KiB (bench.hierarchy, 2 hosts x 2 ranks, all on two cores).
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
    """Make the hierarchy of a group's ranks; None if their hosts do not allow one.

    All ranks must call this function.

    Args:
        group: group of all ranks. It also reduces arrays that are too small for the hierarchy.
        store: a store of all ranks, by which the ranks of a host find each other.
        connect: function that joins the group over the hosts, which has a name for each local rank.
        name: prefix of the hierarchy's keys and of the names of its groups.
        wanted: False for no hierarchy. True raises ValueError on all ranks if the hosts do not
            allow one.
        timeout: default timeout of a call in seconds.
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
    """Reduces arrays in two levels. `open_hierarchy` makes hierarchies.

    All ranks of a host must make their calls in the same order. The exchange on the host, the
    rounds of the reducers, and the collection of results overlap: each stage works on another piece
    or another array. Apart from the arrays, each rank needs memory for one piece, which is a few
    MiB for each rank of a host. A NumericError, or a MismatchError between hosts, fails one call.
    Every other error ends the hierarchy on all ranks.
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
        self._exchange_group, self._collect_group = host_groups
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
        """The step timeout of the group over all ranks."""
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
        residual: Array | None = None,
        flat_key: str | None = None,
        priority: int = 0,
        on_done: Callable[[Any], None] | None = None,
        timeout: Timeout | None = None,
    ) -> Work[Array] | AllReduce:
        """Like `Group.all_reduce`. Float arrays of at least LEAST_BYTES go through the hierarchy.

        Args:
            residual: changes until the call is done, and only where this rank sends elements.
            flat_key: key of a call that does not go through the hierarchy. By default ``key``.
        """
        source = as_array(array)
        code, wire = find_reduction(op, source.dtype, dtype)
        sent = narrow_to(code, wire, wire_dtype)
        if wire not in _FLOATS or source.nbytes < LEAST_BYTES:
            return self._group.all_reduce(
                source,
                op,
                flat_key or key,
                out,
                wire_dtype,
                dtype=dtype,
                residual=residual,
                priority=priority,
                on_done=on_done,
                timeout=timeout,
            )
        result = target_array(out, source.shape, source.dtype)
        feedback = feedback_of(residual, sent, source, result)
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
            residual=feedback,
        )
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._exchanging.put(partial(self._exchange, call))
            self._open += 1
        return call

    def close(self, timeout: float = 10.0) -> None:
        """Wait up to ``timeout`` seconds for the open calls, then leave the group over the hosts.

        The group over all ranks stays open.
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
        """Let the collect thread end the hierarchy and the call after a failed exchange."""
        try:
            self._collecting.put(partial(self._end_and_finish, error, call))
        except Exception as out_of_memory:
            self._end_connections(ReducerError(f"{type(error).__name__}: {error}; {out_of_memory}"))
            self._finish(call)

    def _compare(self, call: AllReduce) -> None:
        """Compare the calls of the host's ranks, because gloo ends the process if sizes differ."""
        texts = self._exchange_group.share(call.describe(), call.left)
        if len(set(texts)) > 1:
            calls = (f"rank {self.layout.neighbour(r)} {t.decode()}" for r, t in enumerate(texts))
            raise MismatchError(
                f"the ranks of a host called all_reduce differently: {'; '.join(calls)}",
                key=call.key,
                reason="neighbour",
            )

    def _fold(self, call: AllReduce, number: int, piece: Piece) -> Work[Array]:
        """Sum our shard of a piece over this host, in place, and submit it to the reducers."""
        own = piece[self.layout.local_rank]
        parts = [row[: own.numel()] for row in self._received]
        parts[self.layout.local_rank] = own
        self._exchange_group.exchange(piece, parts, call.left)
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
        key = f"{number}/{call.key}"  # this group has no other calls
        try:
            return self._across.all_reduce(
                values, call.op, key, values, call.wire_dtype, dtype=call.dtype,
                residual=call.residual_of(own),
            )  # fmt: skip
        except ReducerError as error:
            raise self._between_hosts(error) from None

    # On the collect thread, which alone finishes calls.

    def _collect(self, call: AllReduce, piece: Piece, work: Work[Array]) -> None:
        if self._failure is not None:
            return
        try:
            self._wait(call, work)
            own = piece[self.layout.local_rank]
            self._collect_group.exchange([own] * len(piece), piece, call.left)
        except Exception as error:
            self._end(error)

    def _wait(self, call: AllReduce, work: Work[Array]) -> None:
        try:
            work.wait(max(call.left(), 0.0))
        except (MismatchError, NumericError) as error:
            # The other ranks of the host still wait for our shard. `_finish` gives them the error.
            call.error = call.error or self._between_hosts(error)
        except ReducerError as error:
            raise self._between_hosts(error) from None

    def _finish(self, call: AllReduce) -> None:
        if self._failure is None:
            try:
                told = self._collect_group.share(pack_error(call.error), call.left)
                call.error = next((unpack_error(t) for t in told if t), None)
            except Exception as error:
                self._end(error)
        call.error = self._failure or call.error
        try:
            call.finish(self._callbacks)
        finally:
            with self._idle:
                self._open -= 1
                self._idle.notify_all()

    def _end_and_finish(self, error: Exception, call: AllReduce) -> None:
        self._end(error)
        self._finish(call)

    def _end(self, error: Exception) -> None:
        """End the hierarchy on all ranks, which agree on the cause over the group of all ranks."""
        if self._failure is not None:
            return
        if not isinstance(error, ReducerError):
            error = ReducerError(f"{type(error).__name__}: {error}")
        self._end_connections(error)
        self._failure = find_cause(self._group, f"{self._name}/first-error", error)

    def _end_connections(self, why: ReducerError) -> None:
        with self._lock:
            self._failure = self._failure or why
        self._exchange_group.abort()
        self._collect_group.abort()
        self._across.abort()

    def _between_hosts(self, error: ReducerError) -> ReducerError:
        """The error with a worker's rank. The group over the hosts uses host numbers as ranks."""
        rank = None if error.rank is None else self.layout.counterpart(error.rank)
        who = "" if rank is None else f"rank {rank}: "
        return type(error)(
            f"{who}{error} (between hosts: the other ranks in this text are numbers of hosts)",
            rank=rank,
            round=error.round,
            key=error.key,
            reason=error.reason,
        )
