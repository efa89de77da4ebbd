"""The backend ``"reducer"`` of torch.distributed.

    torch.distributed.init_process_group("reducer")

Reductions, all_gather, broadcast and barrier go through the reducers. Point-to-point calls, and
calls that give each rank different data, use an inner group of gloo (CPU) or nccl (CUDA), which is
made at its first use. Before version 2.14 torch itself refuses ``monitored_barrier`` on every
backend but gloo.

All ranks must make the calls of a group in the same order. If different calls have the same key,
every rank raises MismatchError, which says what each rank called. A barrier and a sum, calls on CPU
and on CUDA tensors, and with a hierarchy small and large sums have different keys. Ranks that
differ in this way wait for each other and raise RoundTimeoutError in the end.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
    PrefixStore,
    ReduceOptions,
    ReduceScatterOptions,
)

from reducer_client.group import Group
from reducer_client.single_rank import SingleRankGroup
from reducer_client.torch.backend.collective import collective, untraced
from reducer_client.torch.backend.ddp_patches import hand_over_lasting_works, take_python_hooks
from reducer_client.torch.backend.delegate import DelegatingGroup
from reducer_client.torch.backend.forming import Formation, form_hierarchy
from reducer_client.torch.backend.inner_groups import InnerGroups
from reducer_client.torch.backend.options import Options
from reducer_client.torch.backend.overloads import (
    allgather_one,
    allreduce_by,
    allreduce_one,
    barrier_within,
    broadcast_one,
    overloads,
    reduce_one,
    reduce_scatter_one,
)
from reducer_client.torch.backend.reduction import (
    FlatReduction,
    HierarchicalReduction,
    narrow,
)
from reducer_client.torch.backend.shapes import (
    check_count,
    check_list,
    check_lists,
    check_pairs,
    check_parts,
    check_root,
    padded,
)
from reducer_client.torch.calls.group_calls import AnyGroup, GroupCalls, timeout_of
from reducer_client.torch.calls.works import CallWork, Handle
from reducer_client.torch.hierarchy.hierarchy import Hierarchy
from reducer_client.torch.staging.transfer import Way
from reducer_client.torch.tensors.host import check_reducible, movable, reducible, scaled
from reducer_client.torch.tensors.packing import Packing
from reducer_client.torch.tensors.sparse import all_reduce_sparse, check_sparse_op

Tensors = list[torch.Tensor]
SumOptions = AllreduceOptions | AllreduceCoalescedOptions


def create(backend: Any, options: Options | None) -> ReducerProcessGroup:
    """Make a new group; torch calls this function with its ``DistributedBackendOptions``."""
    world = dist.group.WORLD if dist.is_initialized() else None
    parent = world if isinstance(world, ReducerProcessGroup) else None
    inherited = options is None
    if options is None:
        options = Options() if parent is None else parent.options
    if not isinstance(options, Options):
        raise TypeError(f"pg_options: expected reducer_client.torch.Options, got {options!r}")
    if parent is not None and parent.job and options.job is None:
        options = replace(options, job=parent.job)  # keys and certificates are for the parent's job
    hand_over_lasting_works()
    take_python_hooks()
    name, rank, size = str(backend.group_id), backend.group_rank, backend.group_size
    group: AnyGroup = SingleRankGroup()
    if size > 1:
        run_id = None if parent is None else parent.run_id
        formation = Formation(name, rank, size, backend.timeout, is_default=world is None)
        store = PrefixStore("reducer", backend.store)
        group = formation.form(store, options, run_id, _beside(parent, options))
    # The store may hold addresses of an earlier group of this name; the run id tells them apart.
    run = PrefixStore(group.run_id if isinstance(group, Group) else "", backend.store)
    # Groups other than the default one seldom cover whole hosts, so they must ask for a hierarchy.
    levels = options.hierarchy if world is None else not inherited and options.hierarchy is True
    hierarchy = None
    if levels and isinstance(group, Group):
        store = PrefixStore("hierarchy", run)
        hierarchy = form_hierarchy(group, store, name, levels, options, backend.timeout)
    inner = InnerGroups(PrefixStore("inner", run), rank, size, backend.timeout)
    return ReducerProcessGroup(group, (rank, size), name, options, inner, hierarchy)


def _beside(parent: ReducerProcessGroup | None, options: Options) -> Group | None:
    """The parent's group, whose reducers a new group uses, too, unless it names others."""
    if parent is None or options.addresses != parent.options.addresses:
        return None
    return parent.reducer_group


class ReducerProcessGroup(DelegatingGroup):
    """A process group whose collectives go through the reducers.

    Collectives raise the errors of ``reducer_client``, which are all RuntimeErrors. ``backward()``
    of a DistributedDataParallel module raises them as well.

    Attributes:
        options: the options of the group.
        layout: which ranks share a host; None if the group has no hierarchy.
    """

    # Torch reads these attributes of a device's backend.
    supports_splitting = False
    supports_time_estimate = False

    def __init__(
        self,
        group: AnyGroup,
        ranks: tuple[int, int],
        name: str,
        options: Options,
        inner: InnerGroups,
        hierarchy: Hierarchy | None,
    ) -> None:
        super().__init__(*ranks, GroupCalls(group, name), inner)
        self._calls.also_ended.append(partial(inner.end, abort=True))
        self._name = name
        self._desc = ""
        self._reduction = (
            FlatReduction(self._calls, options.wire_dtype)
            if hierarchy is None
            else HierarchicalReduction(self._calls, options.wire_dtype, hierarchy)
        )
        self.options = options
        self.layout = None if hierarchy is None else hierarchy.layout

    @property
    def reducer_group(self) -> Group | None:
        """The group on the reducers, for its counters; None for a group of one rank."""
        group = self._calls.group
        return group if isinstance(group, Group) else None

    @property
    def job(self) -> str:
        """The name of the job on the reducers; "" for a group of one rank."""
        group = self.reducer_group
        return "" if group is None else group.job

    @property
    def run_id(self) -> str:
        """The id of the run on the reducers; "" for a group of one rank."""
        group = self.reducer_group
        return "" if group is None else group.run_id

    @collective("all_reduce")
    @overloads(allreduce_one, allreduce_by)
    def allreduce(self, tensors: Tensors, opts: SumOptions | None = None) -> dist.Work:
        options = opts or AllreduceOptions()
        if tensors and tensors[0].is_sparse:
            return self._all_reduce_sparse(tensors, options)
        return self._reduction.all_reduce(tensors, options)

    @untraced
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts or AllreduceCoalescedOptions())

    @collective("reduce")
    @overloads(reduce_one)
    def reduce(self, tensors: Tensors, opts: ReduceOptions | None = None) -> dist.Work:
        """Reduce to the root. The tensors of all other ranks stay unchanged."""
        options = opts or ReduceOptions()
        check_root("reduce", options.rootRank, self.size())
        mine = tensors if self.rank() == options.rootRank else [t.clone() for t in tensors]
        return self._reduction.all_reduce(mine, options)

    @collective("broadcast")
    @overloads(broadcast_one)
    def broadcast(self, tensors: Tensors, opts: BroadcastOptions | None = None) -> dist.Work:
        options = opts or BroadcastOptions()
        packing, root = Packing(tensors), options.rootRank
        check_root("broadcast", root, self.size())

        def submit(source: Any, target: torch.Tensor, **call: Any) -> Handle:
            array = movable(target)
            return self._calls.group.broadcast(array, root, out=array, **call)

        source = packing if root == self.rank() else None
        return self._calls.start(submit, source, packing, tensors, options)

    @collective("all_gather")
    @overloads(allgather_one)
    def allgather(
        self,
        output_tensors: list[Tensors],
        input_tensors: Tensors,
        opts: AllgatherOptions | None = None,
    ) -> dist.Work:
        outputs = output_tensors[0]
        check_list("all_gather", outputs, input_tensors[0], self.size())
        return self._gather(Packing(outputs), Packing(input_tensors), outputs, opts)

    @collective("all_gather")
    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        return self._gather(Packing([output]), Packing([input]), [output], opts)

    @collective("all_gather")
    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        check_pairs("all_gather", outputs, inputs, self.size())
        return self._gather(Packing(outputs, self.size()), Packing(inputs), outputs, opts)

    @collective("reduce_scatter")
    @overloads(reduce_scatter_one)
    def reduce_scatter(
        self,
        output_tensors: Tensors,
        input_tensors: list[Tensors],
        opts: ReduceScatterOptions | None = None,
    ) -> dist.Work:
        """As in gloo, the inputs may differ in shape if every rank gives the same shapes."""
        (output,) = output_tensors
        check_count("reduce_scatter", input_tensors[0], self.size())
        whole, part = padded(input_tensors[0], output, self.rank())
        return self._scatter_sums(Packing(part), Packing(whole), output_tensors, opts)

    @collective("reduce_scatter")
    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        return self._scatter_sums(Packing([output]), Packing([input]), [output], opts)

    @collective("reduce_scatter")
    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        check_pairs("reduce_scatter", inputs, outputs, self.size())
        packed = Packing(inputs, self.size())
        return self._scatter_sums(Packing(outputs), packed, outputs, opts)

    @collective("barrier")
    @overloads(barrier_within)
    def barrier(self, opts: BarrierOptions | None = None) -> dist.Work:
        """Like gloo's barrier: completes after every call that any rank started before.

        The barrier does not raise the errors of those calls. A call may fail on one rank and
        succeed on another, so each call reports its own error.
        """
        options = opts or BarrierOptions()
        seconds = timeout_of(options)
        before = self._calls.pending()  # the barrier does not wait for later calls

        def run(key: str) -> None:
            for work in before:
                with suppress(Exception):
                    work.join()
            self._calls.group.barrier(seconds, key)

        return self._calls.start_task(run, [], options.asyncOp)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier whose error names all absent ranks, whatever ``wait_all_ranks`` is."""
        options = BarrierOptions()
        options.asyncOp = False
        if timeout is not None:
            options.timeout = timeout
        self.barrier(options).wait()

    # The names of these methods in torch 2.12 and earlier.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @collective("all_gather")
    def allgather_coalesced(
        self, outputs: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        check_lists("all_gather", outputs, inputs, self.size())
        flat = [tensor for of_rank in outputs for tensor in of_rank]
        return self._gather(Packing(flat), Packing(inputs), flat, opts)

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the works of the following calls, which start at once."""
        self.coalescing = []

    @untraced
    def _end_coalescing(self, device: torch.device) -> dist.Work:
        """Return one work for all calls since `_start_coalescing`."""
        works, self.coalescing = self.coalescing or [], None

        def run() -> None:
            for work in works:
                work.wait()

        ours = [work for work in works if isinstance(work, CallWork)]
        return self._calls.start_waiting(run, [], ours)

    def shutdown(self) -> None:
        """Leave once every rank has the results of this rank's rounds.

        A second call changes nothing.
        """
        self._inner.end(abort=False)
        self._reduction.close()
        self._calls.close()

    def abort(self) -> None:
        """Leave at once: the other ranks raise PeerLostError."""
        self._inner.end(abort=True)
        self._reduction.abort()
        self._calls.abort()

    def getBackendName(self) -> str:  # noqa: N802  # torch's name
        return "reducer"

    name = _get_backend_name = getBackendName

    def _get_backend(self, device: torch.device) -> ReducerProcessGroup:
        """This group, for every kind of device: torch registers backends only in its own class."""
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors the group takes; empty until torch has made the group.

        Torch 2.15 attaches a recorder to a new group that has devices, through a backend that our
        group lacks.
        """
        if self not in dist.distributed_c10d._world.pg_map:
            return []
        names = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        return [torch.device(name) for name in names]

    def getGroupName(self) -> str:  # noqa: N802  # torch's name
        return self._name

    group_name = property(getGroupName)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802  # torch's name
        return self._desc

    group_desc = property(getGroupDesc)

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def _all_reduce_sparse(self, tensors: Tensors, options: Any) -> dist.Work:
        check_sparse_op(options.reduceOp)

        def gather(tensor: torch.Tensor) -> torch.Tensor:
            whole = tensor.new_empty((self.size(), *tensor.shape))
            self.all_gather_single(whole, tensor).wait()
            return whole

        def run(_: str) -> None:
            for tensor in tensors:
                all_reduce_sparse(tensor, options.reduceOp, gather)

        return self._calls.start_task(run, tensors, options.asyncOp)

    def _gather(self, output: Packing, input: Packing, outputs: Tensors, opts: Any) -> dist.Work:
        check_parts("all_gather", output, input, self.size())

        def submit(source: torch.Tensor, target: torch.Tensor, **call: Any) -> Handle:
            out = movable(target).reshape(self.size(), -1)
            return self._calls.group.all_gather(movable(source), out=out, **call)

        way = Way(by_stream=self._calls.waits_by_stream)
        return self._calls.start(submit, input, output, outputs, opts or AllgatherOptions(), way)

    def _scatter_sums(
        self, output: Packing, input: Packing, outputs: Tensors, opts: Any
    ) -> dist.Work:
        options = opts or ReduceScatterOptions()
        check_parts("reduce_scatter", input, output, self.size())
        op: Any = options.reduceOp
        check_reducible(input.dtype, op)

        def submit(source: torch.Tensor, target: torch.Tensor, **call: Any) -> Handle:
            what = reducible(scaled(source, op), op)
            return self._calls.group.reduce_scatter(
                what.array,
                what.op,
                out=reducible(target, op).array,
                wire_dtype=narrow(source.dtype, source.nbytes, op, self.options.wire_dtype),
                dtype=what.dtype,
                **call,
            )

        way = Way(by_stream=self._calls.waits_by_stream and op.op != dist.ReduceOp.PREMUL_SUM)
        return self._calls.start(submit, input, output, outputs, options, way)
