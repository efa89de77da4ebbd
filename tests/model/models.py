"""The models of tests/model/*.pml that are searched, and the law that each missing rule breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

# What an assertion of a model says when it does not hold: part of its text, and the law.
LAWS = {
    ".sum==": "I1-I3, a result is each rank's contribution, once, in rank order",
    ".held>>": "I6, nothing is freed that a rank lacks",
    ".route>": "I9, the routes that a process knows never go back",
    "slot==": "no frame comes before the route that it was sent under",
    ".freed==": "I11, every rank gets every result and frees every copy",
    "non-progress": "I11, no run goes on for ever",
    ".set==worker": "I1, all results in the newest view are equal",
    ".set==views": "I2, I10, a result has exactly the members of the view that it names",
    ".set==settled": "a settled step is never summed again",
    ".set>0": "I6, nothing is freed that a member of the view lacks",
    ".freed)": "I11, every member of the last view gets the result and frees its copy",
    "((route/": "no frame comes before the view that it was sent under",
    ".held[k]==": "I1, all results in the newest view are equal",
    ")==((16*": "I8, all members of the newest view commit the same sums",
    "settled==((16*": "a settled step is never done again",
    ".generation<": "I11, a step is done again only after a view has changed",
    "||worker[i].committed": "I11, every member of the last view commits the step",
    "n==worker": "I1, all results in the newest view are equal",
    ">views[document]": "I9, the epochs of documents never go back",
    "failed": "I11, every member of the last view gets the result, or the job ends with an error",
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes and faults as macros of a source; `without` is the rule that is taken away.

    `cycles`: look for runs without an end, instead of states that break a law.
    """

    SOURCE: ClassVar[str]
    without: str = ""
    cycles: bool = False

    @classmethod
    def source(cls) -> Path:
        return Path(__file__).with_name(cls.SOURCE)

    @property
    def macros(self) -> list[str]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["without"], values["cycles"]
        macros = [f"-D{name.upper()}={int(value)}" for name, value in values.items()]
        return [*macros, *([f"-D{self.without}"] if self.without else [])]

    @property
    def sizes(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return " ".join(filter(None, (self.sizes, self.without, "cycles" if self.cycles else "")))


def _struck(**faults: int) -> str:
    return "+".join(f"{number}{name}" for name, number in faults.items() if number)


@dataclass(frozen=True, kw_only=True)
class Failover(Model):
    """As text, workers x reducers x chunks x rounds and faults.

    `apart`: each chunk moves in runs of its own, for two do not read each other (README.md).
    """

    SOURCE = "failover.pml"
    workers: int = 2
    chunks: int = 1
    rounds: int = 2
    kills: int = 0
    breaks: int = 0
    alarms: int = 0
    apart: bool = False

    @property
    def sizes(self) -> str:
        struck = _struck(kill=self.kills, **{"break": self.breaks}, alarm=self.alarms)
        sizes = f"{self.workers}x2x{self.chunks}x{self.rounds} {struck}"
        return f"{sizes} apart" if self.apart else sizes


@dataclass(frozen=True, kw_only=True)
class Elastic(Model):
    """As text, workers x lanes x views and faults.

    `reads`: a worker may read the registry when nothing makes it suspect another one.
    """

    SOURCE = "elastic.pml"
    workers: int = 3
    lanes: int = 1
    epochs: int = 2
    deaths: int = 0
    kills: int = 0
    breaks: int = 0
    alarms: int = 0
    reads: bool = True

    @property
    def sizes(self) -> str:
        struck = _struck(
            death=self.deaths, kill=self.kills, **{"break": self.breaks}, alarm=self.alarms
        )
        text = f"{self.workers}x{self.lanes}x{self.epochs} {struck}".strip()
        return text if self.reads else f"{text} unread"


@dataclass(frozen=True, kw_only=True)
class Strict(Model):
    """As text, workers x chunks x views and faults.

    `inside`: workers outside the newest view are followed only while they can act on its members.
    """

    SOURCE = "strict.pml"
    workers: int = 3
    epochs: int = 2
    deaths: int = 0
    inside: bool = False

    @property
    def sizes(self) -> str:
        text = f"{self.workers}x2x{self.epochs} {_struck(death=self.deaths)}".strip()
        return f"{text} inside" if self.inside else text


@dataclass(frozen=True, kw_only=True)
class RegistryLoss(Model):
    """As text, workers x views and faults."""

    SOURCE = "registry_loss.pml"
    workers: int = 3
    views: int = 3
    losses: int = 1
    deaths: int = 0

    @property
    def sizes(self) -> str:
        struck = _struck(loss=self.losses, death=self.deaths)
        return f"{self.workers}x{self.views} {struck}"


# What each rule holds up, and the fault that shows it. README.md has a line for each.
KILL, BREAK = Failover(kills=1), Failover(breaks=1)
DEATH = Elastic(deaths=1)
LOSS = RegistryLoss()
RULES: dict[type[Model], dict[str, tuple[Model, str]]] = {
    Failover: {
        "NO_RANK_ORDER": (KILL, ".sum=="),
        "NO_DEDUPE": (BREAK, ".sum=="),
        "NO_COPY": (KILL, ".sum=="),
        "NO_ROUND": (KILL, ".freed=="),
        "NO_INCARNATION": (KILL, ".freed=="),
        "NO_REDELIVERY": (BREAK, ".freed=="),
        "NO_RESEND": (BREAK, ".freed=="),
        "NO_RESEND_OF_HELD": (KILL, ".freed=="),
        "NO_NEW_POSITIONS": (KILL, ".freed=="),
        "NO_RELAY": (KILL, ".freed=="),
        "NO_WAIT_FOR_ALL": (KILL, ".held>>"),
        "NO_WAIT_FOR_STABLE": (KILL, ".held>>"),
        "NO_ROUTE_FIRST": (KILL, "slot=="),
        "NO_STALE_DROP": (KILL, "slot=="),
        "NO_NEWER_ROUTE": (KILL, ".route>"),
    },
    Elastic: {
        "NO_FENCE": (DEATH, ".set==worker"),
        "NO_LANE_FENCE": (DEATH, ".set==views"),
        "NO_XOR": (DEATH, ".set==worker"),
        "NO_SHRINK_ONLY": (Elastic(epochs=3), ".freed)"),
        "NO_CAS": (DEATH, ".set>0"),
        "NO_VIEW_MOVES_ALL": (DEATH, ".set==worker"),
        "NO_RESULTS_KEPT": (DEATH, ".set>0"),
        "NO_STABLE_OF_VIEW": (DEATH, ".set>0"),
        "NO_NEW_POSITIONS": (DEATH, ".freed)"),
        "NO_RESEND_OF_HELD": (Elastic(breaks=1), ".freed)"),
        "NO_VIEW_FIRST": (DEATH, "((route/"),
        "NO_ORIGIN": (DEATH, ".set==views"),
        "NO_EPOCH_ORDER": (Elastic(kills=1), ".set==views"),
        "NO_NEW_MAKER": (Elastic(deaths=1, kills=1), ".freed)"),
        "NO_VIEW_IN_HELLO": (Elastic(deaths=1, kills=1), ".freed)"),
        "NO_TELL_FORMING": (Elastic(deaths=1, kills=1), ".freed)"),
        "NO_RELAY": (Elastic(reads=False), ".freed)"),
        "NO_SETTLED": (DEATH, ".set==settled"),
    },
    Strict: {
        "NO_HOLDS_ALL": (Strict(inside=True), "||worker[i].committed"),
        "NO_RESULTS_KEPT": (Strict(), "||worker[i].committed"),
        "NO_SETTLED": (Strict(deaths=1), "settled==((16*"),
        "NO_DONE_OF_VIEW": (Strict(), "settled==((16*"),
    },
    RegistryLoss: {
        "NO_WAIT_FOR_ALL": (LOSS, "n==worker"),
        "NO_JUMP": (LOSS, "n==worker"),
        "NO_PROMISE": (LOSS, "n==worker"),
        "NO_OLD_PROMISE": (RegistryLoss(views=4, losses=2), "n==worker"),
        "NO_INCARNATION": (LOSS, ">views[document]"),
    },
}


def broken(of: type[Model]) -> Sequence[Model]:
    return [replace(model, without=rule) for rule, (model, _) in RULES[of].items()]


def expected(model: Model) -> str:
    return RULES[type(model)][model.without][1] if model.without else ""


SMALL: Sequence[Model] = (
    KILL,
    BREAK,
    Failover(chunks=2, kills=1, rounds=1),
    Failover(workers=3, kills=1, rounds=1),
    Failover(chunks=2, breaks=1, rounds=1),
    Failover(alarms=1, kills=1, rounds=1),
    Failover(kills=1, breaks=1, rounds=1, cycles=True),
    Failover(workers=3, chunks=2, kills=1, apart=True),
    DEATH,
    Elastic(deaths=1, kills=1),
    Elastic(deaths=1, kills=1, reads=False),
    Elastic(deaths=1, breaks=1),
    Elastic(deaths=1, kills=1, cycles=True),
    Elastic(epochs=3, deaths=2),
    Elastic(lanes=2, alarms=1),
    Elastic(workers=4, deaths=1),
    Strict(deaths=1),
    Strict(epochs=3),
    Strict(deaths=1, cycles=True),
    LOSS,
    RegistryLoss(deaths=1),
    RegistryLoss(cycles=True),
)
BROKEN = [model for kind in RULES for model in broken(kind)]
FULL: Sequence[Model] = (
    Failover(kills=1, breaks=1),
    Failover(kills=2),
    Failover(chunks=2, kills=1, breaks=1, rounds=1),
    Failover(chunks=2, kills=1),
    Failover(workers=3, kills=1),
    Failover(workers=3, chunks=2, kills=1, rounds=1),
    Failover(workers=3, chunks=2, breaks=1, apart=True),
    Failover(workers=3, chunks=2, alarms=1, apart=True),
    *(
        replace(model, workers=3, chunks=2, apart=True)
        for model in broken(Failover)
        if isinstance(model, Failover)
    ),
    Elastic(epochs=3, deaths=1, breaks=1),
    Elastic(epochs=3, deaths=2, kills=1),
    Elastic(epochs=3, deaths=2, kills=2),
    Elastic(lanes=2, deaths=1, alarms=1),
    Elastic(lanes=2, deaths=1, kills=1),
    Elastic(workers=4, epochs=3),
    Strict(epochs=3, deaths=2),
    Strict(workers=4, deaths=1),
    Strict(workers=4, epochs=3, deaths=2, inside=True),
    RegistryLoss(views=4, deaths=1),
    RegistryLoss(views=4, losses=2),
)
