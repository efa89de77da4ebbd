"""``DiLoCo.join``: workers with local steps are killed, and others come in."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from tests.support.elastic_job import SLOW, ElasticJob
from tests.support.frameworks import needs_extra
from tests.support.ranks import Tell, start_ranks, values

pytestmark = needs_extra("torch")

if TYPE_CHECKING:
    from reducer_client.torch import DiLoCo

SCHEDULE: dict[str, Any] = {"every": 4, "fragments": 2, "delay": 1, "keep_local": 0.5}


class Line(NamedTuple):
    """A worker after a step: its digests, and how many workers are in."""

    step: int
    era: int
    rank: int
    members: int
    outer: str
    model: str
    rate: float


def _digest(opt: DiLoCo) -> str:
    """Of the outer parameters and the velocity; waits for nothing that is in flight."""
    found = sha256()
    for fragment in opt._local.fragments:
        for of in (fragment.outer(), fragment.velocity()):
            for value in of.values():
                found.update(value.numpy().tobytes())
    return found.hexdigest()[:16]


def _work(
    rank: int, world: int, addresses: list[str], end: str, first: int, tell: Tell
) -> list[Line]:
    """Trains until the file ``end`` is there. Tells of its 10th step, and of a loss."""
    import torch

    from reducer_client.torch import DiLoCo
    from tests.support.local_steps import backward, fingerprint, net

    name = first + rank
    model = net(seed=name, norm=True)  # the workers differ until they are in
    adam = torch.optim.Adam(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(adam, 10, 0.9)
    opt = DiLoCo.join(
        model, adam, addresses, workers=3, extra={"schedule": schedule},
        connect={"job": "elastic", "rank": name, "join_timeout": 40.0}, **SCHEDULE,
    )  # fmt: skip
    group: Any = opt.group
    lines: list[Line] = []

    def note() -> None:
        lines.append(
            Line(opt.steps, group.era, group.rank, len(group.members), _digest(opt),
                 fingerprint(model, buffers=True), schedule.get_last_lr()[0])
        )  # fmt: skip

    with group:
        note()
        is_over = False
        while not is_over:
            if opt.in_flight:  # the next step has a merge, after which workers may come in
                mine = np.array([Path(end).is_file()])
                is_over = bool(group.all_reduce(mine, key="end").wait()[0])
            schedule.step()
            backward(model, name, opt.steps)
            opt.step()
            note()
            if len(lines) == 11 or lines[-1].members == 2 != lines[-2].members:
                tell(opt.steps)
            time.sleep(SLOW / 10)
        opt.finish()
        note()
    return lines


def test_a_lost_worker_costs_only_its_own_steps(tmp_path: Path) -> None:
    with ElasticJob(tmp_path) as job:
        arguments = (job.addresses, str(tmp_path / "end"))
        with start_ranks(3, _work, *arguments, 0, talk=True) as ranks:
            for rank in range(3):
                assert ranks.receive(rank, 60) == 10
            ranks.kill(1)
            lost = [ranks.receive(rank, 60) for rank in (0, 2)]
            with start_ranks(1, _work, *arguments, 3, talk=True) as late:
                came_to = late.receive(0, 60)
                (tmp_path / "end").touch()
                workers = [values([ranks.collect_one(rank)])[0] for rank in (0, 2)]
                workers.append(values([late.collect_one(0)])[0])
    first, _, new = workers
    *_, last = first
    assert [line.step for line in first] == [*range(last.step + 1), last.step]
    for step in range(1, last.step):
        assert len({line.outer for lines in workers for line in lines if line.step == step}) == 1
    came = new[0]
    assert max(lost) < came.step == came_to - 10
    assert (came.era, came.members) == (1, 3)
    before = next(line for line in first if line.step == came.step)
    assert before.rank == 0
    assert (came.outer, came.model, came.rate) == (before.outer, before.model, before.rate)
    assert len({lines[-1].outer for lines in workers}) == 1
    assert last.step > came.step


def test_transfers_that_never_end_are_refused() -> None:
    """Workers come in when nothing is in flight."""
    from reducer_client.elastic import ElasticGroup
    from reducer_client.outer.schedule import Schedule
    from reducer_client.torch.local.local_steps import _check_elastic

    group = ElasticGroup.__new__(ElasticGroup)
    with pytest.raises(ValueError, match="delay=2 with every=4 and fragments=2: workers come in"):
        _check_elastic(group, Schedule(4, 2, 2))
    _check_elastic(group, Schedule(4, 2, 1))
