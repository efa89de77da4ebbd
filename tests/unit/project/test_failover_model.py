"""The models of failover and of the changing worker set hold, and need each of their rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.model import models, run

pytestmark = pytest.mark.skipif(
    bool(run.missing()), reason=f"no {run.missing()}: apt-get install spin gcc"
)


README = (Path(run.__file__).parent / "README.md").read_text()


def _first_by_day(
    searched: Sequence[models.Model], at_night: Sequence[models.Model] = ()
) -> list[Any]:
    """Each commit searches one model of each source; nights search all. Only tests/model changes
    them."""
    first = {type(model): model for model in reversed(searched)}.values()
    return [
        model
        if model in first and model not in at_night
        else pytest.param(model, marks=pytest.mark.long)
        for model in searched
    ]


# They take 8 CPU seconds each, and the models without a rule are almost the same.
LARGEST = (models.STEP_KILL, models.PUSH_BOTH)


@pytest.mark.parametrize("model", _first_by_day(models.SMALL, LARGEST), ids=str)
def test_no_law_is_broken(model: models.Model) -> None:
    found = run.search(model)
    print(found)
    assert not found.broken, models.LAWS.get(found.broken, found.broken)
    assert found.states > 1_000, "too few states: faults have not struck"


@pytest.mark.parametrize("model", _first_by_day(models.BROKEN), ids=str)
def test_a_missing_rule_breaks_a_law(model: models.Model) -> None:
    found = run.search(model)
    print(found)
    assert found.broken == models.expected(model)


@pytest.mark.parametrize("kind", models.RULES, ids=lambda kind: kind.SOURCE)
def test_every_rule_is_taken_away(kind: type[models.Model]) -> None:
    rules = re.findall(r"NO_[A-Z_]+", kind.source().read_text())
    assert set(rules) - {"NO_"} == set(models.RULES[kind])


@pytest.mark.parametrize("kind", models.RULES, ids=lambda kind: kind.SOURCE)
def test_the_readme_has_every_rule(kind: type[models.Model]) -> None:
    """README.md has a table of rules for each source, under the source's name."""
    part = README.split(f"\n## `{kind.SOURCE}`")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(NO_[A-Z_]+)`", part, re.M) == list(models.RULES[kind])


# --- chunks can be searched separately ---

SOURCE = models.Failover.source().read_text()
A_CHUNK = r"(?:\bshare|\bstream)\[|\bS\.|\bCELL\b"  # the state of one chunk
ASSIGNED = r"^\s*(?:::.*?->\s*)?([\w.\[\]]+)(?:\+\+| = )"
OF_A_CHUNK = "send_next report_done take_done take_contribution nobody_needs free_below take_result"
OF_THE_REST = (
    "say take_frame take_route clear_stream learn_route begin_anew welcome connect make_route lose "
    "kill"
)
SCRATCH = r"(?:i|j|k|n|kind|rank|slot|home|number|route|told|body)$"


def bodies(names: str) -> Iterator[str]:
    """The bodies of these inlines, as lines."""
    for name in names.split():
        found = re.search(rf"^inline {name}\(.*?^}}", SOURCE, re.M | re.S)
        assert found is not None, name
        yield from found[0].splitlines()[1:]


def macro(name: str) -> str:
    """The text of a macro, in all its variants."""
    return "".join(re.findall(rf"^#define {name}\b(?:.*\\\n)*.*\n", SOURCE, re.M))


def test_a_step_of_a_chunk_changes_that_chunk_alone() -> None:
    for line in bodies(OF_A_CHUNK):
        for owner in re.findall(r"(?:share|stream)\[(\w+)\]", line):
            assert owner in ("h", "home"), line
        for target in re.findall(ASSIGNED, line):
            assert (
                re.match(A_CHUNK, target)
                or re.search(r"\.share\[|\.stream\[", target)
                or re.match(SCRATCH, target)
            ), line


def test_no_connection_route_or_fault_reads_a_chunk() -> None:
    reads = [macro(name) for name in ("SLOT", "DECIDE", "FAIL")]
    for line in bodies(OF_THE_REST):
        if not re.search(A_CHUNK, line):
            reads.append(line)
            continue
        assert re.search(A_CHUNK, re.findall(ASSIGNED, line)[0]), line
    seen = set[str]()
    while reads:
        text = reads.pop()
        assert not re.search(A_CHUNK, text), text
        new = set(re.findall(r"\b[A-Z_]{2,}\b", text)) - seen
        seen |= new
        reads += filter(None, map(macro, new))
    assert {"MAY_TELL_ROUTE", "SUSPECTS", "MAY_TAKE_IN", "MAY_DIE", "OWNER", "IS_STALE"} <= seen


def test_every_step_is_of_a_chunk_or_of_the_rest() -> None:
    assert sorted(f"{OF_A_CHUNK} {OF_THE_REST}".split()) == sorted(
        re.findall(r"^inline (\w+)", SOURCE, re.M)
    )


@pytest.mark.long
def test_two_chunks_apart_hold_what_they_hold_together() -> None:
    """Searched either way, a missing rule breaks the same law: 2 x 2 x 2 x 1, one round."""
    for rule in ("NO_COPY", "NO_RELAY", "NO_WAIT_FOR_ALL"):
        together = models.Failover(chunks=2, kills=1, rounds=1, without=rule)
        found = [run.search(model).broken for model in (together, replace(together, apart=True))]
        assert found == [models.expected(together)] * 2, rule
