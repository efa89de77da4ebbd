"""B8: the same bits, whatever the reducers, the chunks, the order of arrival and who dies."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from reducer_client import Work
from tests.soak import Figures, Say
from tests.support.groups import Array, Groups, Values
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

WORLD = 6  # more than are folded at once
COUNT = 50_021  # elements
REDUCERS = (1, 2, 3, 5)
CHUNKS = (16 << 10, 48 << 10)


class Job:
    """Ranks that contribute one after another: each waits until the lanes have what came before."""

    def __init__(self, reducers: Reducers, values: Values, chunk: int, name: str) -> None:
        self._reducers = reducers
        self._values = values
        self._chunks = -(-4 * COUNT // chunk)
        self.groups = Groups(WORLD, reducers.addresses, name, chunk_table=[(0, chunk)])

    def turn(self, turn: int, order: Sequence[int], victim: int | None) -> None:
        """One round; where there is a victim, it dies with all contributions but one."""
        before = self._taken()
        works: list[Work[Array]] = []
        for place, rank in enumerate(order, 1):
            if place == WORLD and victim is not None:
                self._reducers.kill(victim)
                self._reducers.start(victim)
            works.append(self.groups.ranks[rank].all_reduce(self._values.of(rank, turn), key="k"))
            if place < WORLD:
                self._wait_for(before + place * self._chunks)
        expected = self._values.total(turn).tobytes()
        assert {work.wait(60).tobytes() for work in works} == {expected}, (turn, order, victim)

    def settle(self, turn: int) -> None:
        """Rounds, until every reducer sums again: from then on no chunk moves."""
        indices = range(len(self._reducers.addresses))

        def all_sum() -> bool:
            self.groups.turn(self._values, turn)
            return all(self._reducers.contributions(index) for index in indices)

        wait_until(all_sum, 60, "every reducer sums again")

    def _taken(self) -> int:
        return sum(lane["contributions"] for lane in self.groups.ranks[0].stats()["reducers"])

    def _wait_for(self, contributions: int) -> None:
        wait_until(lambda: self._taken() >= contributions, 30, "the lanes have them", 0.002)


def run(count: int, seed: int, say: Say, numbers: Sequence[int] = REDUCERS) -> Figures:
    """`count` orders of arrival for each number of reducers, chunk size, and with a kill or not."""
    rng = random.Random(seed)
    ranks = tuple(range(WORLD))  # the order in which most is folded before the last comes
    orders = [ranks, *rng.sample([*itertools.permutations(ranks)][1:], count - 1)]
    values = Values(seed, WORLD, COUNT)
    rounds = kills = 0
    for number in numbers:
        with Reducers(number, "--log-level", "error") as reducers:
            for chunk in CHUNKS:
                job = Job(reducers, values, chunk, f"bits{chunk}")
                with job.groups:
                    for turn, (order, dies) in enumerate(itertools.product(orders, (False, True))):
                        job.turn(turn, order, rng.randrange(number) if dies else None)
                        if dies:
                            job.settle(turn)
                        rounds, kills = rounds + 1, kills + dies
        say(f"{number} reducers, {len(CHUNKS)} chunk sizes, {count} orders: the same bits")
    return {"rounds": f"{rounds:,}", "kills": f"{kills:,}", "other bits": "0"}
