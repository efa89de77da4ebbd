"""The Promela model of failover holds, and each rule that it is built from is needed."""

from __future__ import annotations

import re

import pytest

from tests.model import run

pytestmark = pytest.mark.skipif(
    bool(run.missing()), reason=f"no {run.missing()}: apt-get install spin gcc"
)


@pytest.mark.parametrize("model", run.SMALL, ids=str)
def test_no_law_is_broken(model: run.Model) -> None:
    found = run.search(model)
    print(found)
    assert not found.broken, run.LAWS.get(found.broken, found.broken)
    assert found.states > 1_000, "faults that never struck prove nothing"


@pytest.mark.parametrize("model", run.BROKEN, ids=lambda model: model.without)
def test_a_missing_rule_breaks_a_law(model: run.Model) -> None:
    found = run.search(model)
    print(found)
    assert found.broken == run.expected(model)


def test_every_rule_is_taken_away() -> None:
    assert set(re.findall(r"NO_[A-Z_]+", run.SOURCE.read_text())) - {"NO_"} == set(run.RULES)
