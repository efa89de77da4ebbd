"""Each rank refuses tensors that do not fit before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist

from reducer_client.torch.backend.shapes import (
    check_list,
    check_lists,
    check_pairs,
    check_parts,
    padded,
)
from reducer_client.torch.tensors.packing import Packing


def _of(*shapes: Any) -> list[torch.Tensor]:
    return [torch.zeros(shape) for shape in shapes]


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "sizes": (
        lambda: check_list("all_gather", _of(2, 4), torch.zeros(3), 2),
        r"all_gather over 2 ranks: expected .* shape \(3,\) for rank 0.* got \(2,\)",
    ),
    "the last one": (
        lambda: check_list("all_gather", _of(3, 4), torch.zeros(3), 2),
        r"shape \(3,\) for rank 1, .* got \(4,\)",
    ),
    "shapes": (
        lambda: check_list("all_gather", _of((2, 3), (3, 2)), torch.zeros(6), 2),
        r"shape \(6,\) for rank 0.* got \(2, 3\)",
    ),
    "few": (
        lambda: check_list("all_gather", _of(6), torch.zeros(3), 2),
        "a list of 2 tensors, got 1",
    ),
    "many": (
        lambda: check_list("all_gather", _of(2, 2, 2), torch.zeros(3), 2),
        "a list of 2 tensors, got 3",
    ),
    "none": (lambda: check_list("all_gather", [], torch.zeros(3), 2), "2 tensors, got 0"),
    "lists of ranks": (
        lambda: check_lists("all_gather", [_of(3, 1), _of(4)], _of(3, 1), 2),
        "2 tensors for rank 1, .* got 1",
    ),
    "tensors of ranks": (
        lambda: check_lists("all_gather", [_of(3, 1), _of(1, 3)], _of(3, 1), 2),
        r"\(3,\) for rank 1, .* got \(1,\)",
    ),
    "few ranks": (
        lambda: check_lists("all_gather", [_of(3, 1)], _of(3, 1), 2),
        "a list of 2 tensors, got 1",
    ),
    "pairs": (
        lambda: check_pairs("reduce_scatter", _of(4, 8), _of(4, 2), 2),
        "reduce_scatter over 2 ranks: expected 8 elements .* in pair 0, .* got 4$",
    ),
    "no pairs": (
        lambda: check_pairs("reduce_scatter", _of(4, 8), _of(6), 2),
        "as many outputs as inputs, got 2 tensors for all ranks and 1 for one rank",
    ),
    "another output": (
        lambda: padded(_of(3, (2, 1)), torch.zeros(2), 1),
        r"over 2 ranks: expected an output of shape \(2, 1\), .* got \(2,\)",
    ),
    "the total": (
        lambda: check_parts("all_gather", Packing(_of(7)), Packing(_of(3)), 2),
        "expected 6 elements of torch.float32 .* got 7 of torch.float32",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(name: str) -> None:
    check, told = WRONG[name]
    with pytest.raises(ValueError, match=told):
        check()


def test_what_fits_is_taken() -> None:
    check_list("all_gather", _of((2, 3), (2, 3)), torch.zeros(2, 3), 2)
    check_lists("all_gather", [_of(3, 1), _of(3, 1)], _of(3, 1), 2)
    check_pairs("reduce_scatter", _of((2, 3), 4), _of(3, (2, 1)), 2)
    check_parts("all_gather", Packing(_of((2, 3))), Packing(_of(3)), 2)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Any]:
    """The default group, with only this process."""
    store = f"file://{tmp_path}/store"
    dist.init_process_group("reducer", init_method=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_every_collective_of_lists_checks_them(group: Any) -> None:
    three, four = torch.zeros(3), torch.zeros(4)
    for call in (
        lambda: group.allgather([[four]], [three]),
        lambda: group.allgather([[]], [three]),
        lambda: group.allgather_coalesced([[four, three]], [three, four]),
        lambda: group.all_gather_single_coalesced([four, three], [three, four]),
        lambda: group.all_gather_single(four, three),
        lambda: group.reduce_scatter([three], [[four]]),
        lambda: group.reduce_scatter([three], [[]]),
        lambda: group.reduce_scatter_single_coalesced([four, three], [three, four]),
        lambda: group.reduce_scatter_single(three, four),
    ):
        with pytest.raises(ValueError, match=r"(all_gather|reduce_scatter) over 1 ranks: expected"):
            call()
    for call in (lambda: group.allreduce([]), lambda: group.broadcast([])):
        with pytest.raises(ValueError, match="expected at least one"):
            call()
