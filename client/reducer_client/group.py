"""Groups: a worker's membership in a job, and its collectives."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

import numpy as np

from reducer.wire.codes import MAX_KEY_BYTES, Collective, DType, ReduceOp
from reducer_client.arrays import (
    Array,
    apart,
    as_array,
    check_movable,
    flat_bytes,
    target_array,
)
from reducer_client.completer import Completer, Together
from reducer_client.config import DEFAULT_STEP_TIMEOUT, Settings
from reducer_client.debug import about, join_logger, rounds_logger
from reducer_client.default_keys import KeysInTurn
from reducer_client.dtypes import (
    Op,
    Wire,
    WireDtype,
    find_dtype,
    find_op,
    find_reduction,
    narrow_to,
)
from reducer_client.engine import Engine, EngineError, Operation
from reducer_client.errors import ReducerError, RoundTimeoutError, from_engine
from reducer_client.feedback import feedback_of, feedbacks_of
from reducer_client.fusion import DEFAULT_FUSION_THRESHOLD, Results, plan_fusion
from reducer_client.hosted.reducers import Reducers
from reducer_client.interrupts import EndOnInterrupt
from reducer_client.parts import DeviceWords, Parts
from reducer_client.reports import StallReports
from reducer_client.trust import Trust
from reducer_client.work import Timeout, Work, WorkContext

# Kinds of calls whose key is optional.
_KINDS = ("all_reduce", "all_reduce_many", "broadcast", "all_gather", "reduce_scatter")

OnDone = Callable[[Work[Any]], None]
T = TypeVar("T")


class Group:
    """A worker's membership in a job. ``connect`` makes groups.

    As a context manager, a group is aborted if an error other than SystemExit leaves the block,
    else closed. Any thread may call a group. Calls without a ``key`` use the keys of their kind of
    call in rotation, so all ranks must make the calls of a kind in the same order. Calls with keys
    may come in any order. Keys that begin with ``~`` are reserved for the client.
    """

    def __init__(
        self, settings: Settings, engine: Engine, reducers: Reducers, trust: Trust
    ) -> None:
        self._begin(settings, engine, reducers, trust)

    def _begin(self, settings: Settings, engine: Engine, reducers: Reducers, trust: Trust) -> None:
        """Go on with this engine. Works of an engine before it stay as they are."""
        self._settings = settings
        self._trust = trust
        self._reducers = reducers
        self._engine = engine
        self._end_on_interrupt = EndOnInterrupt(lambda _: engine.abort())
        self._about = about(settings)
        self._traces = rounds_logger.isEnabledFor(logging.DEBUG)
        reports = StallReports(engine, self._about)
        default = settings.step_timeout or DEFAULT_STEP_TIMEOUT
        self._context = WorkContext(
            engine,
            reports,
            default,
            fail_on_overflow=settings.on_overflow == "error",
            fail_on_nonfinite=settings.on_nonfinite == "error",
            world_size=settings.world_size,
        )
        self._run_id = engine.run_id
        reports.collect()  # such as reducers that the job starts without
        self._reports = reports
        self._unnamed = {kind: KeysInTurn(f"~{kind}", self.reducers) for kind in _KINDS}
        self._completer = Completer(engine, reports)
        self._end = weakref.finalize(self, _shut_down, engine, self._completer, reducers)

    @property
    def rank(self) -> int:
        """This worker's rank, from 0."""
        return self._settings.rank

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return self._settings.world_size

    @property
    def run_id(self) -> str:
        """The id of this run, equal on all ranks."""
        return self._run_id

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._settings.job

    @property
    def settings(self) -> Settings:
        """The settings with which the group was made."""
        return self._settings

    @property
    def trust(self) -> Trust:
        """How this worker and the dedicated reducers prove who they are."""
        return self._trust

    @property
    def reducers_in_use(self) -> Reducers:
        """The reducers at the start of the job, dedicated and hosted."""
        return self._reducers

    @property
    def reducers(self) -> int:
        """The number of reducers at the start of the job."""
        return len(self._settings.addresses)

    @property
    def step_timeout(self) -> float | None:
        """The ``step_timeout`` given to ``connect``, in seconds or None."""
        return self._settings.step_timeout

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
        priority: int = 0,
        parts: Parts | None = None,
        words: DeviceWords | None = None,
        on_done: OnDone | None = None,
        timeout: Timeout | None = None,
    ) -> Work[Array]:
        """Reduce an array over all ranks; every rank gets the result.

        Args:
            array: a NumPy array or any buffer, of equal shape and dtype on all ranks.
            op: ``"sum"``, ``"mean"`` (or ``"avg"``), ``"min"``, ``"max"`` or ``"prod"``; for
                integers also the bitwise ``"band"``, ``"bor"`` and ``"bxor"``. The mean of integers
                is truncated toward zero. For bool, sum, max and bor are "or", prod, min and band
                are "and", and bxor is "exclusive or".
            out: array or buffer for the result. It may be ``array``. By default a new array.
            wire_dtype: the dtype in which a float32 array is sent: ``"bfloat16"`` or ``"float16"``;
                for sum and mean also ``"int8"``, ``"float8_e4m3fn"``, ``"e3m0"`` (4 bits), or a
                ``reducer_client.Quantized``.
            dtype: ``"bfloat16"`` if 16-bit integers hold bfloat16; ``"float8_e4m3fn"`` or
                ``"float8_e5m2"`` if 8-bit integers hold float8.
            residual: error feedback for a quantised ``wire_dtype``: a float32 array of the array's
                shape, zeros before the first call and the same one in each call. What rounding has
                kept back is in it when this call returns, and is sent with the next array. If the
                call fails, a part of it may have changed: set it to zero.
            priority: calls of higher priority are sent first, and calls of equal priority in the
                order in which they were made. Ranks may use different priorities.
            parts: how the array is filled and emptied during the call, if ``out`` is ``array`` and
                there is no ``residual``.
            words: instead of ``parts``, for an array that a device fills.
            on_done: function that is called with the work, on a thread of the client, when the work
                has succeeded or failed. If the work is not done within ``timeout``, it fails with
                RoundTimeoutError and the group ends, because otherwise the buffers would never be
                free.
            timeout: timeout for ``on_done``, in seconds or a timedelta. By default
                ``step_timeout``.

        Returns:
            Work whose result has the array's shape and dtype; the same bits on every rank.

        Raises:
            TypeError: ``array`` or ``out`` is no array or buffer, or the dtype cannot be reduced
                with this ``op`` or ``wire_dtype``.
            ValueError: ``op``, ``key``, ``wire_dtype``, ``residual``, ``parts`` or the shape of
                ``out`` is invalid.
            ReducerError: a subclass, if the group has ended or the array has too many chunks.
        """
        source = as_array(array)
        code, reducible = find_reduction(op, source.dtype, dtype)
        wire = narrow_to(code, reducible, wire_dtype)
        target = target_array(out, source.shape, source.dtype)
        feedback = feedback_of(residual, wire, source, target)
        return self._make(
            key,
            "all_reduce",
            lambda name: self._submit(
                Collective.ALL_REDUCE,
                code,
                wire,
                name,
                count=source.size,
                source=source,
                target=target,
                residual=feedback,
                priority=priority,
                parts=parts,
                words=words,
                on_done=on_done,
                timeout=timeout,
            ),
        )

    def all_reduce_many(
        self,
        arrays: Sequence[object],
        op: Op = "sum",
        fusion_threshold: int = DEFAULT_FUSION_THRESHOLD,
        key: str | None = None,
        wire_dtype: WireDtype | None = None,
        *,
        out: Sequence[object] | None = None,
        residuals: Sequence[Array] | None = None,
        on_done: OnDone | None = None,
        timeout: Timeout | None = None,
    ) -> Work[list[Array]]:
        """Reduce many arrays, packed into fusion buffers of one dtype each.

        Args:
            arrays: NumPy arrays or buffers, of equal shapes and dtypes on all ranks.
            fusion_threshold: maximum size in bytes of a fusion buffer.
            op, key, wire_dtype: as for ``all_reduce``.
            out: an array or buffer for each result, which ``wait`` writes, and the call itself
                before ``on_done``. They may be ``arrays``. By default the results are views of the
                fusion buffers.
            residuals: the ``residual`` of each array, as for ``all_reduce``.
            on_done, timeout: as for ``all_reduce``.

        Returns:
            Work whose result is a list of arrays in the given order.
        """
        sources = [as_array(array) for array in arrays]
        reductions = [find_reduction(op, source.dtype) for source in sources]
        wires = [narrow_to(code, reducible, wire_dtype) for code, reducible in reductions]
        feedbacks = feedbacks_of(residuals, wires, sources)
        results = Results(sources, plan_fusion(sources, fusion_threshold), out)

        def submit(name: str) -> Work[list[Array]]:
            _fitting(_part(name, len(results.buffers)))  # before any buffer is submitted
            together = None if on_done is None else Together(len(results.buffers), on_done)
            operations: list[Operation] = []
            try:
                for index, buffer in enumerate(results.buffers):
                    fused = buffer.pack(sources)
                    kept = buffer.pack(feedbacks) if feedbacks else None
                    part: Work[Array] = self._submit(
                        Collective.ALL_REDUCE,
                        reductions[buffer.members[0]][0],
                        wires[buffer.members[0]],
                        _part(name, index),
                        count=buffer.count,
                        source=fused,
                        target=fused,
                        residual=kept,
                        on_done=None if together is None else together.one_done,
                        timeout=timeout,
                    )
                    if kept is not None:
                        buffer.unpack(kept, feedbacks)
                    operations.extend(part._operations)
                    results.arrive_in(index, fused)
                divides = find_op(op) is ReduceOp.MEAN
                work = Work(
                    self._context, name, operations, results.arrays, divides, results.unpack
                )
                if together is not None:
                    together.submitted(work)
                return work
            except Exception:
                if operations:
                    self._give_up()
                raise

        return self._make(key, "all_reduce_many", submit)

    def broadcast(
        self,
        array: object,
        root: int = 0,
        key: str | None = None,
        out: object | None = None,
        *,
        on_done: OnDone | None = None,
        timeout: Timeout | None = None,
    ) -> Work[Array]:
        """Send the root's array to all ranks, byte for byte.

        Args:
            array: the array to send; on the other ranks any array of the same shape and dtype. The
                dtype may not contain Python objects.
            root: the rank that sends.
            out: array or buffer for the result. It may be ``array``. By default a new array.
            on_done, timeout: as for ``all_reduce``.

        Returns:
            Work whose result has the array's shape and dtype.

        Raises:
            ValueError: ``root`` is not a rank. Also the errors of ``all_reduce``.
        """
        source = as_array(array)
        if not 0 <= root < self.world_size:
            raise ValueError(f"root={root}: expected a rank from 0 to {self.world_size - 1}")
        wire, count = _as_moved(source)
        target = target_array(out, source.shape, source.dtype)
        sends = root == self.rank
        if sends and target is not source:
            np.copyto(target, source)
        return self._make(
            key,
            "broadcast",
            lambda name: self._submit(
                Collective.BROADCAST,
                ReduceOp.COPY,
                wire,
                name,
                count=count,
                source=source if sends else None,
                target=None if sends else target,
                result=target,
                root=root,
                on_done=on_done,
                timeout=timeout,
            ),
        )

    def all_gather(
        self,
        array: object,
        key: str | None = None,
        out: object | None = None,
        *,
        words: DeviceWords | None = None,
        on_done: OnDone | None = None,
        timeout: Timeout | None = None,
    ) -> Work[Array]:
        """Gather the arrays of all ranks, byte for byte.

        Args:
            array: an array of equal shape and dtype on all ranks. The dtype may not contain Python
                objects.
            out: array or buffer for the result. By default a new array.
            words, on_done, timeout: as for ``all_reduce``.

        Returns:
            Work whose result has shape ``(world_size, *array.shape)``, in the order of the ranks.
        """
        source = as_array(array)
        wire, count = _as_moved(source)
        return self._make(
            key,
            "all_gather",
            lambda name: self._submit(
                Collective.ALL_GATHER,
                ReduceOp.COPY,
                wire,
                name,
                count=count,
                source=source,
                target=target_array(out, (self.world_size, *source.shape), source.dtype),
                words=words,
                on_done=on_done,
                timeout=timeout,
            ),
        )

    def reduce_scatter(
        self,
        array: object,
        op: Op = "sum",
        key: str | None = None,
        out: object | None = None,
        wire_dtype: WireDtype | None = None,
        *,
        dtype: str | None = None,
        residual: Array | None = None,
        words: DeviceWords | None = None,
        on_done: OnDone | None = None,
        timeout: Timeout | None = None,
    ) -> Work[Array]:
        """Reduce an array over all ranks; rank r gets the r-th of ``world_size`` equal parts.

        Args:
            array: its first axis, of length n, must be divisible by the world size.
            op, wire_dtype, dtype, residual, words, on_done, timeout: as for ``all_reduce``.
            out: array or buffer for the result. By default a new array.

        Returns:
            Work whose result has shape ``(n // world_size, *array.shape[1:])``.

        Raises:
            ValueError: n is not divisible by the world size. Also the errors of ``all_reduce``.
        """
        source = as_array(array)
        if source.ndim == 0 or source.shape[0] % self.world_size:
            raise ValueError(
                f"reduce_scatter of shape {source.shape}: the first axis must be divisible by the "
                f"world size, {self.world_size}; pad the array"
            )
        code, reducible = find_reduction(op, source.dtype, dtype)
        wire = narrow_to(code, reducible, wire_dtype)
        shape = (source.shape[0] // self.world_size, *source.shape[1:])
        target = target_array(out, shape, source.dtype)
        feedback = feedback_of(residual, wire, source, target)
        return self._make(
            key,
            "reduce_scatter",
            lambda name: self._submit(
                Collective.REDUCE_SCATTER,
                code,
                wire,
                name,
                count=source.size // self.world_size,
                source=source,
                target=target,
                residual=feedback,
                words=words,
                on_done=on_done,
                timeout=timeout,
            ),
        )

    def barrier(self, timeout: Timeout | None = None, key: str | None = None) -> None:
        """Return when every rank has called this method.

        Raises RoundTimeoutError after ``timeout`` seconds (default ``step_timeout``) and ends the
        group, because a second barrier of this rank would match the first barrier of a late rank.
        Barriers without a ``key`` run one after another, also if several threads call them.
        """
        name = "~barrier" if key is None else _checked(key)
        wait_or_end(
            self,
            lambda: self._submit(
                Collective.BARRIER, ReduceOp.NONE, Wire(DType.UINT8), name, count=0
            ),
            timeout,
        )

    def stats(self, timeout: float = 5.0) -> dict[str, Any]:
        """Current counters of this worker and of every lane of the job.

        Returns:
            A dict. Of this worker: ``bytes_sent``, ``bytes_received``, ``connections``,
            ``local_connections`` (over Unix sockets) and ``nonfinite_rounds`` (rounds with NaN or
            Inf). Of all lanes: ``late``, a dict from rank to how often the rank came last in a
            round, summed over the lanes (each lane reports only the 64 ranks that came last most
            often); ``reducers``, a list with the STATS dict of every lane.

        Raises:
            ReducerError: a subclass, if a lane does not answer within ``timeout`` seconds or the
                group has ended.
        """
        try:
            lanes = self._engine.stats(timeout)
        except EngineError as error:
            raise from_engine(error.args) from None
        late = dict.fromkeys(range(self.world_size), 0)
        for lane in lanes:
            for rank, times in cast(list[list[int]], lane["late"]):
                late[rank] += times
        return {
            "bytes_sent": self._engine.bytes_sent,
            "bytes_received": self._engine.bytes_received,
            "connections": self._engine.connections,
            "local_connections": self._engine.local_connections,
            "nonfinite_rounds": self._engine.counters()["nonfinite_rounds"],
            "late": late,
            "reducers": lanes,
        }

    def close(self, timeout: float = 10.0) -> None:
        """Leave the job once every rank has the results of this rank's rounds.

        The call waits for this up to ``timeout`` seconds. Works that are not done fail with
        ClosedError, and so do all later calls. Does not raise if the group has failed. A second
        call changes nothing.
        """
        self._leave(lambda: self._engine.close(timeout))

    def abort(self, timed_out: str = "") -> None:
        """Leave at once. The other ranks raise PeerLostError.

        ``timed_out`` is the text of the timeout for which the group ends, which the other ranks'
        errors then contain; empty if there is another cause.
        """
        self._leave(lambda: self._engine.abort(timed_out))

    def __repr__(self) -> str:
        state = "open" if self._end.alive and self._engine.error is None else "ended"
        return (
            f"<{type(self).__name__} job={self.job!r} run={self.run_id!r} rank={self.rank} of "
            f"{self.world_size}, {self.reducers} reducers, {state}>"
        )

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None or issubclass(kind, SystemExit):
            self.close()
        else:
            self.abort()

    def _make(self, key: str | None, kind: str, call: Callable[[str], Work[T]]) -> Work[T]:
        """Make a call with the given key, or with the next key of its kind."""
        with self._end_on_interrupt:
            if key is not None:
                return call(_checked(key))
            return self._unnamed[kind].next(call)

    def _leave(self, leave: Callable[[], None]) -> None:
        if self._end.detach() is None or self._engine.forked:
            return
        self._reports.collect()
        join_logger.info(
            "leaves: %d bytes sent, %d received",
            *(self._engine.bytes_sent, self._engine.bytes_received),
            extra={"about": self._about},
        )
        try:
            leave()
        finally:
            self._completer.stop()
            self._reducers.stop()

    def _submit(
        self,
        collective: Collective,
        op: ReduceOp,
        wire: Wire,
        key: str,
        *,
        count: int,
        source: Array | None = None,
        target: Array | None = None,
        residual: Array | None = None,
        result: Array | None = None,
        root: int = 0,
        priority: int = 0,
        parts: Parts | None = None,
        words: DeviceWords | None = None,
        on_done: OnDone | None = None,
        timeout: Timeout | None = None,
    ) -> Work[Array]:
        limit = self._context.limit(timeout)
        source = apart(source, target)
        operation = None
        try:
            if on_done is not None:
                self._completer.begin()
            operation = self._engine.submit(
                collective,
                op,
                wire.dtype,
                wire.wide,
                key,
                root,
                count,
                None if source is None else flat_bytes(source),
                None if target is None else flat_bytes(target),
                on_done is not None,
                priority,
                None if residual is None else flat_bytes(residual),
                wire.stochastic,
                None if parts is None else parts.filled,
                0 if parts is None else parts.size,
                None if words is None else flat_bytes(words.slices),
                0 if words is None else words.slice,
                None if words is None else flat_bytes(words.gate),
            )
            if self._traces:
                self._trace(operation, collective, wire.dtype, count)
            kept = result if result is not None else target
            divides = op is ReduceOp.MEAN
            result_ = kept if kept is not None else np.empty(0)
            work = Work(self._context, key, (operation,), result_, divides=divides)
            if on_done is not None:
                on_part = None if parts is None else parts.on_part
                self._completer.expect(operation, work, limit, lambda: on_done(work), on_part)
            return work
        except EngineError as error:
            raise from_engine(error.args) from None
        except Exception:
            if operation is not None:
                self._give_up()
            raise

    def _give_up(self) -> None:
        """End the group after a call that failed only on this rank (see interrupts.py)."""
        self._engine.abort()

    def _trace(
        self, operation: Operation, collective: Collective, dtype: DType, count: int
    ) -> None:
        name, kind = collective.name.lower(), dtype.name.lower()
        fields = {**self._about, "key": operation.key, "round": operation.round}
        rounds_logger.debug("%s of %s x %d", name, kind, count, extra={"about": fields})


def wait_or_end(group: Group, call: Callable[[], Work[T]], timeout: Timeout | None = None) -> T:
    """Make a call and wait for its work, which the program does not get and cannot wait for again.

    A timeout ends the group, as an interrupt does, for the reason in interrupts.py.
    """
    return wait_all_or_end(group, lambda: [call()], timeout)[0]


def wait_all_or_end(
    group: Group, calls: Callable[[], Sequence[Work[T]]], timeout: Timeout | None = None
) -> list[T]:
    """Make several calls and wait for their works, as ``wait_or_end`` does for one call."""
    with group._end_on_interrupt:
        works = calls()
        try:
            return [work.wait(timeout) for work in works]
        except RoundTimeoutError as error:
            group.abort(str(error))
            raise
        except ReducerError:
            raise
        except Exception:  # out of memory: only this rank lacks the result
            group.abort()
            raise


def _shut_down(engine: Engine, completer: Completer, reducers: Reducers) -> None:
    """Close a group that is garbage or still open at exit. Waits only 2 s for the other ranks."""
    if not engine.forked:
        engine.close(2.0)
        completer.stop()
        reducers.stop()


def _checked(key: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"key {key!r}: expected a str, got {type(key).__name__}")
    if key.startswith("~"):
        raise ValueError(f"key {key!r}: keys that begin with ~ are reserved for the client")
    return _fitting(key)


def _part(name: str, index: int) -> str:
    """The key of a fusion buffer. No other call can have this key.

    The first buffer has the key of the call itself, because such keys spread the load over lanes.
    """
    return f"~{index}/{name}" if index else name


def _fitting(key: str) -> str:
    size = len(key.encode())
    if not 1 <= size <= MAX_KEY_BYTES:
        raise ValueError(
            f"key of {size} bytes ({key[:40]!r}...): expected 1 to {MAX_KEY_BYTES} bytes of UTF-8"
        )
    return key


def _as_moved(array: Array) -> tuple[Wire, int]:
    """How an array is moved, and its count: as bytes if its dtype cannot be reduced."""
    check_movable(array.dtype)
    found = find_dtype(array.dtype)
    return (Wire(DType.UINT8), array.nbytes) if found is None else (Wire(found), array.size)
