"""The contenders, as a worker sees them. Each is imported only where it takes part."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from bench.allreduce.cases import Array, Case

Action = Callable[[], object]
REDUCERS, PLUGIN, GLOO, MPI = "reducers", "plugin", "gloo", "mpi"
PEERS = (GLOO, MPI, PLUGIN)


class Contender(Protocol):
    """A way to sum arrays over all ranks; making one joins the other ranks."""

    def bind(self, array: Array, case: Case) -> Action:
        """An action that sums ``array`` in place; all ranks must call theirs."""
        ...

    def close(self) -> None: ...


def can_reduce(name: str, case: Case) -> bool:
    """MPI has no 16-bit floats, and NCCL sends no type as another."""
    return case.type == "fp32" if name == MPI else name != PLUGIN or not case.narrows


def open_contender(name: str, setup: Mapping[str, Any], rank: int) -> Contender:
    """``setup``: what the coordinator sends to all workers, see `run`."""
    kinds: dict[str, Callable[[Mapping[str, Any], int], Contender]]
    kinds = {REDUCERS: _Reducers, PLUGIN: _Plugin, GLOO: _Gloo, MPI: _Mpi}
    return kinds[name](setup, rank)


class _Reducers:
    def __init__(self, setup: Mapping[str, Any], rank: int) -> None:
        import reducer_client

        self._group = reducer_client.connect(
            setup["addresses"],
            job="bench",
            rank=rank,
            world_size=setup["workers"],
            **setup["connect"],
        )

    def bind(self, array: Array, case: Case) -> Action:
        wire: Literal["bfloat16"] | None = "bfloat16" if case.narrows else None
        group = self._group
        return lambda: group.all_reduce(array, out=array, key="bench", wire_dtype=wire).wait()

    def close(self) -> None:
        self._group.close()


class _Plugin:
    """The plugin for NCCL, as NCCL's proxy thread calls it: requests of 2 MiB, eight at a time.

    It polls as rarely as a lab of few cores can bear; NCCL polls without a pause.
    """

    _REQUEST = 2 << 20
    _IN_FLIGHT = 8
    _PAUSE = 0.0002

    def __init__(self, setup: Mapping[str, Any], rank: int) -> None:
        from bench.plugin import CollNet

        os.environ["NCCL_COLLNET_ENABLE"] = "1"
        os.environ["REDUCER_ADDRS"] = ",".join(setup["addresses"])
        os.environ["REDUCER_TRANSPORT"] = setup["connect"].get("transport", "auto")
        self._table = CollNet(12)
        self._table.init()
        handle, listen = self._table.listen()
        handles = _exchange(Path(setup["plugin_store"]), rank, setup["workers"], handle)
        self._comm = self._table.connect(handles, rank, listen)
        self._table.close_listen(listen)

    def bind(self, array: Array, case: Case) -> Action:
        step = self._REQUEST // array.itemsize
        pieces = [array[at : at + step] for at in range(0, array.size, step)]
        return lambda: self._reduce(pieces, case.dtype.name)

    def _reduce(self, pieces: Sequence[Array], dtype: str) -> None:
        table, open_ = self._table, deque[Any]()
        waiting = deque(pieces)
        while waiting or open_:
            while waiting and len(open_) < self._IN_FLIGHT:
                piece = waiting.popleft()
                open_.append(table.all_reduce(self._comm, piece, piece, dtype, "sum"))
            while open_ and table.test(open_[0]) is not None:
                open_.popleft()
            if open_:
                time.sleep(self._PAUSE)

    def close(self) -> None:
        self._table.close(self._comm)
        self._table.finalize()


def _exchange(folder: Path, rank: int, ranks: int, handle: bytes) -> list[bytes]:
    """Every rank's handle, through files."""
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
        # A file crosses network namespaces, and needs no port.
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
            """What torch's bf16_compress_hook does."""
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

        mpi4py.rc.thread_level = "serialized"  # Open MPI is faster without locks of its own
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
