"""Which ranks of which jobs a worker may join as, by its key or certificate.

A place is a job and a rank.
"""

from __future__ import annotations

from typing import Final

from reducer.wire.errors import AuthenticationError

Place = tuple[str, int]

ANY_RANK: Final = -1


class Permit:
    """`places`: jobs, each with a rank or ANY_RANK; `proof`: the kind of the proof, in one word.

    `jobs`: the names of the jobs in `places`. Several places may name the same job.
    """

    __slots__ = ("jobs", "places", "proof")

    def __init__(self, proof: str, places: tuple[Place, ...]) -> None:
        self.proof = proof
        self.places = places
        self.jobs = frozenset([job for job, _ in places])

    @property
    def only_job(self) -> str:
        """The job of all places; "" if they have several jobs."""
        return next(iter(self.jobs)) if len(self.jobs) == 1 else ""

    def check(self, job: str, rank: int) -> None:
        """Raises AuthenticationError unless the worker may join the job as this rank."""
        if (job, ANY_RANK) in self.places or (job, rank) in self.places:
            return
        text = (
            f"by its {self.proof} this worker may join {self}, but it says HELLO as rank {rank} of "
            f"job {job!r}"
        )
        if any(name == job for name, _ in self.places):
            text += f"; use a {self.proof} for the whole job, which also admits to its groups"
        raise AuthenticationError(text)

    def __str__(self) -> str:
        return " or ".join(_named(job, rank) for job, rank in self.places) or "nothing"


def _named(job: str, rank: int) -> str:
    return f"job {job!r}" if rank == ANY_RANK else f"rank {rank} of job {job!r}"
