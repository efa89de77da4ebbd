"""The contenders in a worker. The library of a contender is imported only if it takes part."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.allreduce.cases import Array, Case

if TYPE_CHECKING:
    from reducer_client import Group, Work

Action = Callable[[], object]
REDUCERS, PLUGIN, GLOO, MPI = "reducers", "plugin", "gloo", "mpi"
ELASTIC = "elastic"  # the reducers, with workers that may come and go
PEERS = (GLOO, MPI, PLUGIN, ELASTIC)
OVER_REDUCERS = (REDUCERS, PLUGIN, ELASTIC)
# Pieces of an array in flight: as many as NCCL's requests of a group.
_UNDER_WAY = 8


class Contender(Protocol):
    """A way to sum arrays over all ranks. The constructor joins the other ranks."""

    def bind(self, array: Array, case: Case) -> Action:
        """A function that sums ``array`` in place; all ranks must call it."""
        ...

    def close(self) -> None: ...


def can_reduce(name: str, case: Case) -> bool:
    """Whether a contender supports a case: MPI has no 16-bit floats, and NCCL converts no types."""
    return case.type == "fp32" if name == MPI else name != PLUGIN or not case.narrows


def open_contender(name: str, setup: Mapping[str, Any], rank: int) -> Contender:
    """Join a contender; ``setup`` is what the coordinator sends to all workers (see `run`)."""
    kinds: dict[str, Callable[[Mapping[str, Any], int], Contender]]
    kinds = {REDUCERS: _Reducers, PLUGIN: _Plugin, GLOO: _Gloo, MPI: _Mpi}
    kinds[ELASTIC] = _Elastic
    return kinds[name](setup, rank)


def _split(array: Array, bytes_: int) -> list[Array]:
    """Views of at most ``bytes_`` bytes; 0 gives one view of the whole array."""
    step = bytes_ // array.itemsize or array.size
    return [array[at : at + step] for at in range(0, array.size, step)]


class _Reducers:
    def __init__(self, setup: Mapping[str, Any], rank: int) -> None:
        import reducer_client

        self._piece = setup["piece"]
        self._group: Group = reducer_client.connect(
            setup["addresses"],
            job="bench",
            rank=rank,
            world_size=setup["workers"],
            **setup["connect"],
        )

    def bind(self, array: Array, case: Case) -> Action:
        group, wire, pieces = self._group, case.sent_as, _split(array, self._piece)

        def begin(number: int) -> Work[Array]:
            piece = pieces[number]
            return group.all_reduce(piece, out=piece, key=f"bench.{number}", wire_dtype=wire)

        def reduce() -> None:
            under_way = deque(begin(number) for number in range(len(pieces[:_UNDER_WAY])))
            for number in range(_UNDER_WAY, len(pieces)):
                under_way.popleft().wait()
                under_way.append(begin(number))
            for work in under_way:
                work.wait()

        return reduce

    def close(self) -> None:
        self._group.close()


class _Elastic(_Reducers):
    def __init__(self, setup: Mapping[str, Any], rank: int) -> None:
        from reducer_client import elastic

        self._piece = setup["piece"]
        self._group = elastic.connect(
            setup["addresses"],
            job="bench-elastic",
            rank=rank,
            workers=setup["workers"],
            **setup["connect"],
        )


class _Plugin:
    """The plugin for NCCL, called as NCCL's proxy thread calls it.

    NCCL polls without a pause, on a core of its own. Workers of a lab share cores, so this class
    sleeps between polls: for half of the time that the request should still take, if it takes as
    long as the request before it.
    """

    _LEAST_PAUSE = 0.0001

    def __init__(self, setup: Mapping[str, Any], rank: int) -> None:
        from reducer_tools.nccl.tables import CollNet
        from tests.support.plugin import NCCL_PLUGIN

        os.environ["NCCL_COLLNET_ENABLE"] = "1"
        os.environ["REDUCER_ADDRS"] = ",".join(setup["addresses"])
        os.environ["REDUCER_TRANSPORT"] = setup["connect"].get("transport", "auto")
        self._piece = setup["piece"]
        self._table = CollNet(NCCL_PLUGIN, 12)
        self._table.init()
        handle, listen = self._table.listen()
        handles = _exchange(Path(setup["plugin_store"]), rank, setup["workers"], handle)
        self._comm = self._table.connect(handles, rank, listen)
        self._table.close_listen(listen)
        self._took = 0.0

    def bind(self, array: Array, case: Case) -> Action:
        pieces = _split(array, self._piece)
        return lambda: self._reduce(pieces, case.dtype.name)

    def _reduce(self, pieces: Sequence[Array], dtype: str) -> None:
        under_way = deque[tuple[Any, float]]()
        waiting = deque(pieces)
        while waiting or under_way:
            while waiting and len(under_way) < _UNDER_WAY:
                piece = waiting.popleft()
                request = self._table.all_reduce(self._comm, piece, piece, dtype, "sum")
                under_way.append((request, time.perf_counter()))
            request, begun = under_way[0]
            done = self._table.test(request) is not None
            elapsed = time.perf_counter() - begun
            if done:
                self._took = elapsed
                under_way.popleft()
            else:
                time.sleep(max(self._LEAST_PAUSE, (self._took - elapsed) / 2))

    def close(self) -> None:
        self._table.close(self._comm)
        self._table.finalize()


def _exchange(folder: Path, rank: int, ranks: int, handle: bytes) -> list[bytes]:
    """Exchange the handles of all ranks through files."""
    folder.mkdir(exist_ok=True)
    fresh = folder / f"{rank}.new"
    fresh.write_bytes(handle)
    fresh.rename(folder / str(rank))
    paths = [folder / str(other) for other in range(ranks)]
    while not all(path.exists() for path in paths):
        time.sleep(0.01)
    return [path.read_bytes() for path in paths]


class _Gloo:
    def __init__(self, setup: Mapping[str, Any], rank: int) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        world = setup["workers"]
        # A file works across network namespaces and needs no port.
        where = f"file://{setup['gloo_store']}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)

    def bind(self, array: Array, case: Case) -> Action:
        import torch
        import torch.distributed as dist

        if case.dtype.name == "bfloat16":
            tensor = torch.from_numpy(array.view("uint16")).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        if not case.narrows:
            return lambda: dist.all_reduce(tensor)

        def reduce_narrowed() -> None:
            """Sum in bfloat16, as torch's bf16_compress_hook does."""
            narrow = tensor.to(torch.bfloat16)
            dist.all_reduce(narrow)
            tensor.copy_(narrow)

        return reduce_narrowed

    def close(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


class _Mpi:
    def __init__(self, setup: Mapping[str, Any], rank: int) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "serialized"  # Open MPI is faster without its own locks
        from mpi4py import MPI

        self._mpi = MPI
        found = (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
        if found != (rank, setup["workers"]):
            raise RuntimeError(f"MPI made this worker rank {found[0]} of {found[1]}, not {rank}")

    def bind(self, array: Array, case: Case) -> Action:
        mpi = self._mpi
        return lambda: mpi.COMM_WORLD.Allreduce(mpi.IN_PLACE, array, mpi.SUM)

    def close(self) -> None:
        self._mpi.Finalize()
