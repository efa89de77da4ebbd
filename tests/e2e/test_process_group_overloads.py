"""The methods of ``ProcessGroup`` in all forms that torch accepts, compared with gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reducer_client.config import keep_gloo_on_loopback
from reducer_client.torch.backend import overloads
from tests.support.process_group import process_group
from tests.support.ranks import run_ranks

MAX = dist.ReduceOp.MAX
WITHIN = timedelta(seconds=30)


@contextmanager
def _gloo(rank: int, world: int, store: str) -> Iterator[Any]:
    keep_gloo_on_loopback()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def _options(options: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def _in_place(rank: int) -> list[tuple[str, Callable[[Any, torch.Tensor], Any]]]:
    """(what, call of a group on one tensor)"""

    def at(root: int, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if rank == root else tensor.clone()  # gloo leaves arbitrary values in it

    by_max = dist.ReduceOp(MAX)
    summed = _options(dist.AllreduceOptions(), reduceOp=MAX)
    return [
        ("allreduce", lambda g, t: g.allreduce(t)),
        ("allreduce by", lambda g, t: g.allreduce(t, MAX)),
        ("allreduce by an object", lambda g, t: g.allreduce(t, by_max)),
        ("allreduce by, by name", lambda g, t: g.allreduce(tensor=t, op=MAX, timeout=WITHIN)),
        ("allreduce within", lambda g, t: g.allreduce(t, timeout=WITHIN)),
        ("allreduce of a list", lambda g, t: g.allreduce([t])),
        ("allreduce of a list by", lambda g, t: g.allreduce([t], MAX, WITHIN)),
        ("allreduce of a list, by name", lambda g, t: g.allreduce(tensors=[t], op=MAX)),
        ("allreduce of a tuple", lambda g, t: g.allreduce((t,), opts=summed)),
        ("broadcast", lambda g, t: g.broadcast(t, 1)),
        ("broadcast within", lambda g, t: g.broadcast(tensor=t, root=1, timeout=WITHIN)),
        ("broadcast of a list", lambda g, t: g.broadcast([t])),
        ("reduce", lambda g, t: g.reduce(at(1, t), 1)),
        ("reduce by", lambda g, t: g.reduce(at(1, t), 1, MAX, WITHIN)),
        ("reduce by name", lambda g, t: g.reduce(tensor=at(0, t), root=0, op=MAX)),
        ("reduce of a list", lambda g, t: g.reduce([at(0, t)])),
        ("send and recv", lambda g, t: (g.send, g.recv)[rank]([t], 1 - rank, 7)),
        ("recv_anysource", lambda g, t: g.recv_anysource([t], 7) if rank else g.send([t], 1, 7)),
    ]


def _parted(rank: int) -> list[tuple[str, Callable[[Any, torch.Tensor, list[torch.Tensor]], Any]]]:
    """(what, call of a group on one tensor and a list of one for each rank)"""
    return [
        ("allgather", lambda g, t, ts: g.allgather(ts, t)),
        ("allgather within", lambda g, t, ts: g.allgather(ts, input_tensor=t, timeout=WITHIN)),
        ("allgather of lists", lambda g, t, ts: g.allgather([ts], input_tensors=[t])),
        ("gather", lambda g, t, ts: g.gather([] if rank else ts, t, 0)),
        ("gather within", lambda g, t, ts: g.gather(ts if rank else [], t, root=1, timeout=WITHIN)),
        ("gather of lists", lambda g, t, ts: g.gather([] if rank else [ts], [t])),
        ("scatter", lambda g, t, ts: g.scatter(t, [] if rank else ts, 0)),
        ("scatter within", lambda g, t, ts: g.scatter(t, ts if rank else [], 1, WITHIN)),
        ("scatter of lists", lambda g, t, ts: g.scatter([t], [] if rank else [ts])),
        ("reduce_scatter", lambda g, t, ts: g.reduce_scatter(t, ts)),
        ("reduce_scatter by", lambda g, t, ts: g.reduce_scatter(t, ts, MAX, WITHIN)),
        ("reduce_scatter by name", lambda g, t, ts: g.reduce_scatter(output=t, input=ts, op=MAX)),
        ("reduce_scatter of lists", lambda g, t, ts: g.reduce_scatter([t], [ts])),
        ("alltoall", lambda g, t, ts: g.alltoall(ts, [t, t + 10])),
        ("alltoall_base", lambda g, t, ts: g.alltoall_base(t, t.clone(), [], [])),
        (
            "alltoall_base within",
            lambda g, t, ts: g.alltoall_base(t, t * 2, [1, 1], [1, 1], WITHIN),
        ),
        ("barrier", lambda g, t, ts: g.barrier()),
        ("barrier within", lambda g, t, ts: g.barrier(WITHIN)),
        ("barrier within seconds", lambda g, t, ts: g.barrier(30.0)),
        ("barrier by name", lambda g, t, ts: g.barrier(timeout=None)),
        ("barrier with options", lambda g, t, ts: g.barrier(opts=dist.BarrierOptions())),
    ]


def _is_taken(group: Any, call: Callable[[], Any]) -> bool:
    try:
        call().wait()
    except TypeError:  # gloo of an older torch has fewer forms
        assert group.name() != "reducer" and torch.__version__ < "2.13"
        return False
    return True


def _results(group: Any, rank: int) -> Iterator[tuple[str, list[torch.Tensor]]]:
    for what, call in _in_place(rank):
        for tensor in (
            torch.arange(6.0).reshape(2, 3) + 5 * rank,
            torch.tensor([3 * rank]),  # one element has a truth value, false for 0
            torch.tensor([5 - 5 * rank], dtype=torch.int32),
        ):
            if _is_taken(group, partial(call, group, tensor)):
                yield f"{what} of {tensor.numel()} {tensor.dtype}", [tensor]
    for what, part in _parted(rank):
        own, parts = torch.arange(2.0) - 4 * rank, [torch.ones(2), torch.zeros(2) + rank]
        if _is_taken(group, partial(part, group, own, parts)):
            yield what, [own, *parts]


REFUSED: tuple[Callable[[Any, torch.Tensor], Any], ...] = (
    lambda g, t: g.allreduce(t, dist.AllreduceOptions()),
    lambda g, t: g.allreduce(t, 1),
    lambda g, t: g.allreduce(3),
    lambda g, t: g.allreduce([t], root=1),
    lambda g, t: g.broadcast(t),
    lambda g, t: g.broadcast(t, 1.0),
    lambda g, t: g.broadcast([t], 1),
    lambda g, t: g.reduce([t], 0, MAX),
    lambda g, t: g.allgather([[t, t]], t),
    lambda g, t: g.allgather(t, t),
    lambda g, t: g.gather([t, t], t),
    lambda g, t: g.scatter(t, [t, t]),
    lambda g, t: g.reduce_scatter(t, t),
    lambda g, t: g.alltoall_base(t, t, [], [], 3),
    lambda g, t: g.barrier(3),
)


def _refuses(group: Any) -> bool:
    tensor = torch.ones(2)
    for number, call in enumerate(REFUSED):
        with pytest.raises(TypeError):
            call(group, tensor)
            pytest.fail(f"call {number} was taken")
    for refused in (group.reduce, group.broadcast):
        with pytest.raises((ValueError, RuntimeError), match="root"):
            refused(tensor, 2)
    return True


def _beside_gloo(rank: int, world: int, addresses: list[str], job: str, folder: str) -> bool:
    with process_group(rank, world, addresses, f"{folder}/ours", job=job) as group:
        ours = dict(_results(group, rank))
        text = r"allreduce: expected allreduce\(tensors, opts\) or allreduce\(tensor, op, timeout\)"
        with pytest.raises(TypeError, match=text + r".*, got \(list\[Tensor\], root=int\)"):
            group.allreduce([torch.ones(2)], root=1)
        assert _refuses(group)
        found, sent = [torch.zeros(1), torch.zeros(1)], [torch.ones(1), torch.ones(1)]
        if _is_taken(group, lambda: group.alltoall(found, sent, timeout=WITHIN)):  # torch's stub
            assert found == sent
    with _gloo(rank, world, f"{folder}/gloo") as group:
        for what, expected in _results(group, rank):
            for found, tensor in zip(ours[what], expected, strict=True):
                assert torch.equal(found, tensor), f"{what}: {found}, over gloo {tensor}"
        return _refuses(group)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="gloo took fewer forms before torch 2.13")
def test_a_group_takes_the_forms_that_gloo_takes(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    assert all(run_ranks(2, _beside_gloo, addresses, job, str(tmp_path)))


def _joined(group: Any, rank: int, static: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2), find_unused_parameters=True)
    with model.join(divide_by_initial_world_size=static):
        for step in range(1 + 2 * rank):
            model(torch.full((1, 4), rank + step + 1.0)).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        (overloads.allreduce_one, 1),
        (overloads.allreduce_by, 1),
        (overloads.broadcast_one, 2),
        (overloads.reduce_one, 2),
        (overloads.allgather_one, 2),
        (overloads.gather_one, 3),
        (overloads.scatter_one, 3),
        (overloads.reduce_scatter_one, 2),
        (overloads.alltoall_within, 2),
        (overloads.all_to_all_single_within, 4),
        (overloads.barrier_within, 0),
    ],
)
def test_a_timeout_reaches_the_options(form: Any, arguments: int) -> None:
    with_one, without = form(*[0] * arguments, timeout=WITHIN), form(*[0] * arguments)
    assert with_one[-1].timeout == WITHIN
    assert without[-1].timeout == dist.BarrierOptions().timeout


def _join(rank: int, world: int, addresses: list[str], job: str, folder: str) -> bool:
    with process_group(rank, world, addresses, f"{folder}/ours", job=job) as group:
        ours = [_joined(group, rank, static) for static in (True, False)]
    with _gloo(rank, world, f"{folder}/gloo") as group:
        for found, static in zip(ours, (True, False), strict=True):
            expected = _joined(group, rank, static)
            assert expected and all(map(torch.equal, found, expected))
    return True


def test_ranks_join_that_look_for_unused_parameters(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    assert all(run_ranks(2, _join, addresses, job, str(tmp_path)))
