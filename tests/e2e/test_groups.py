"""Groups of a job's workers are runs of the job: they form at the same time, use its key or
certificate, and sum independently."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reducer import keyfile
from reducer_client import AuthenticationError, Group
from tests.support.certs import Authority, Files
from tests.support.ranks import join
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

JOB = "mesh"
# The ranks of each group by run id: the run itself, the two disjoint rows of a mesh of 2 x 2, and a
# group that overlaps both rows.
MEMBERS = {
    "night-7": (0, 1, 2, 3),
    "night-7#row/0": (0, 1),
    "night-7#row/1": (2, 3),
    "night-7#middle": (1, 2, 3),
}


@dataclass
class Place:
    """Reducers of one mode, with credentials for the job, and for its rank 0 alone."""

    reducers: Reducers
    options: dict[str, Any] = field(default_factory=dict)
    of_rank_0: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(params=["open", "psk", "tls"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, certs: Files, authority: Authority
) -> Iterator[Place]:
    flags: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    of_rank_0: dict[str, Any] = {}
    if request.param == "psk":
        master, key = str(tmp_path / "master"), str(tmp_path / "job")
        keyfile.make(master)
        keyfile.make_for_job(key, JOB, master)
        flags, options = ("--key-file", master), {"key_file": key}
    if request.param == "tls":
        flags = certs.flags
        options = authority.issue_for(f"reducer://job/{JOB}").arguments
        of_rank_0 = authority.issue_for(f"reducer://job/{JOB}/rank/0").arguments
    with Reducers(2, *flags) as reducers:
        yield Place(reducers, options, of_rank_0)


def _sum(group: Group, value: int) -> int:
    """Sum over the members of the group, and close it."""
    with group:
        return int(group.all_reduce(np.array([value]), key="same").wait(60)[0])


def _forming(reducers: Reducers) -> int:
    return int(reducers.daemon(0).stats()["lanes"][0]["core"]["forming"])


def test_groups_form_at_the_same_moment_and_sum_apart(place: Place) -> None:
    addresses = place.reducers.addresses

    def member(run_id: str, rank: int) -> Group:
        size = len(MEMBERS[run_id])
        return join(rank, size, addresses, JOB, run_id=run_id, **place.options)

    with ThreadPoolExecutor(max_workers=16) as threads:
        early = {
            (run_id, rank): threads.submit(member, run_id, rank)
            for run_id, of_run in MEMBERS.items()
            for rank in range(1, len(of_run))
        }
        wait_until(lambda: _forming(place.reducers) == len(MEMBERS), 30)
        late = {(run_id, 0): threads.submit(member, run_id, 0) for run_id in MEMBERS}
        groups = {who: joined.result() for who, joined in {**early, **late}.items()}
        jobs = place.reducers.daemon(0).stats()["lanes"][0]["core"]["jobs"]
        sums = {
            (run_id, rank): threads.submit(_sum, group, 1 << MEMBERS[run_id][rank])
            for (run_id, rank), group in groups.items()
        }
        found = {who: result.result() for who, result in sums.items()}
    assert found == {who: sum(1 << rank for rank in MEMBERS[who[0]]) for who in groups}
    assert {title: numbers["world_size"] for title, numbers in jobs.items()} == {
        "mesh": 4, "mesh#row/0": 2, "mesh#row/1": 2, "mesh#middle": 3,
    }  # fmt: skip
    if place.of_rank_0:
        refused = "use a certificate for the whole job"
        with pytest.raises(AuthenticationError, match=refused):
            join(1, 2, addresses, JOB, run_id="night-7#other", **place.of_rank_0)
