"""The models of tests/model/*.pml that are searched, and the law that each missing rule breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

# What an assertion of a model says when it does not hold: part of its text, and the law.
LAWS = {
    ".version>=": "T12, no result is taken back",
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
    "decided[n]==": "T14, all replicas of all shards apply a step over one set",
    ".carried": "T11, a gradient is applied once",
    ".step==": "I11, every worker gets the result of every step",
    "alarms)>=2": "one fault loses no state",
    "i==j": "T11, a log has each update once",
    "(m<": "T11, what has a receipt was taken",
    "log[m]<": "T11, a repeat is answered with the first outcome",
    "i>=shown": "T12, what a receipt or a pull has shown is never taken back",
    ".applied>=": "T13, what a worker reads never goes back",
    ")==worker[j].told": "T11, the ledger of an ended incarnation stays true",
    ".told!=0": "I11, every ended incarnation is sealed",
    ".receipts>>": "I11, every push gets a receipt",
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


@dataclass(frozen=True, kw_only=True)
class TableStep(Model):
    """As text, workers x shards x steps and faults."""

    SOURCE = "table_step.pml"
    workers: int = 3
    steps: int = 2
    deaths: int = 0
    doubts: int = 0
    kills: int = 0
    alarms: int = 0

    @property
    def sizes(self) -> str:
        struck = _struck(death=self.deaths, doubt=self.doubts, kill=self.kills, alarm=self.alarms)
        return f"{self.workers}x2x{self.steps} {struck}"


@dataclass(frozen=True, kw_only=True)
class TablePush(Model):
    """As text, workers x updates of each and faults."""

    SOURCE = "table_push.pml"
    workers: int = 2
    updates: int = 1
    deaths: int = 0
    drops: int = 0
    restores: int = 0
    kills: int = 0
    alarms: int = 0

    @property
    def sizes(self) -> str:
        struck = _struck(
            death=self.deaths,
            drop=self.drops,
            restore=self.restores,
            kill=self.kills,
            alarm=self.alarms,
        )
        return f"{self.workers}x{self.updates} {struck}"


# What each rule holds up, and the fault that shows it. README.md has a line for each.
KILL, BREAK = Failover(kills=1), Failover(breaks=1)
DEATH = Elastic(deaths=1)
LOSS = RegistryLoss()
STEP_KILL, STEP_DOUBT = TableStep(workers=2, kills=1), TableStep(doubts=1)
PUSH_KILL, PUSH_BOTH = TablePush(updates=2, kills=1), TablePush(kills=1, alarms=1)
SEALED, RESTORED = TablePush(kills=1, deaths=1), TablePush(updates=2, restores=1)
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
    TableStep: {
        "NO_COMMIT": (STEP_DOUBT, "decided[n]=="),
        "NO_GENERATION": (STEP_DOUBT, "decided[n]=="),
        "NO_COMMIT_LOGGED": (STEP_KILL, ".step=="),
        "NO_COMMIT_TO_BACKUPS": (STEP_KILL, ".step=="),
        "NO_CONFIRM_OF_BACKUP": (STEP_KILL, ".step=="),
        "NO_ASKING": (STEP_KILL, ".version>="),
        "NO_TERM_OF_SHARD": (TableStep(workers=2, alarms=1), ".version>="),
        "NO_SET_TERM": (STEP_KILL, ".step=="),
        "NO_PARK": (STEP_KILL, ".step=="),
        "NO_RECORD_IN_REFILL": (STEP_KILL, ".step=="),
        "NO_LOG_IN_REFILL": (TableStep(workers=2, kills=2), ".step=="),
        "NO_LATE_AFTER_COMMIT": (STEP_DOUBT, ".carried"),
    },
    TablePush: {
        "NO_SEQ": (PUSH_KILL, "i==j"),
        "NO_GAP": (PUSH_KILL, "(m<"),
        "NO_OUTCOME": (TablePush(updates=2, drops=1), "log[m]<"),
        "NO_RECEIPT_AFTER_BACKUP": (PUSH_KILL, "i>=shown"),
        "NO_APPLY_AFTER_BACKUP": (PUSH_KILL, "i>=shown"),
        "NO_CAS": (PUSH_BOTH, ".applied>="),
        "NO_INCARNATION": (PUSH_KILL, ".applied>="),
        "NO_TERM_CHECK": (PUSH_BOTH, ".applied>="),
        "NO_NEWER_TERM": (PUSH_BOTH, ".applied>="),
        "NO_DROP_BY_CAS": (PUSH_BOTH, "i>=shown"),
        "NO_FULL_COPY": (PUSH_BOTH, "i>=shown"),
        "NO_WAIT_FOR_NEXT": (PUSH_BOTH, ".applied>="),
        "NO_FRESH_COPY": (TablePush(updates=2, alarms=1), "i==j"),
        "NO_SEAL": (SEALED, ")==worker[j].told"),
        "NO_SEAL_RECORD": (SEALED, ")==worker[j].told"),
        "NO_SEAL_AT_RESTORE": (RESTORED, ")==worker[j].told"),
        "NO_DISCARD": (TablePush(restores=1), "i==j"),
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
    STEP_KILL,
    STEP_DOUBT,
    TableStep(workers=2, kills=2),
    TableStep(workers=2, alarms=1),
    TableStep(steps=1, deaths=1, kills=1),
    PUSH_BOTH,
    SEALED,
    TablePush(kills=2),
    TablePush(updates=2, drops=1),
    PUSH_KILL,
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
    TableStep(kills=2),
    TableStep(deaths=1, kills=1),
    TableStep(doubts=1, kills=1),
    TableStep(workers=2, alarms=1, kills=1),
    TablePush(updates=2, alarms=1),
    RESTORED,
    TablePush(workers=3, kills=1, alarms=1),
)
