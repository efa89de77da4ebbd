"""What a certificate or a key lets its worker join, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from reducer.core.surface import events
from reducer.core.surface.permit import ANY_RANK, Permit
from reducer.server.gates.tls import permit_of
from reducer.wire.errors import AuthenticationError


def of(*uris: str) -> Permit | None:
    names = (("DNS", "reducer://job/dns"), *(("URI", uri) for uri in uris))
    return permit_of({"subjectAltName": names})


def allowed(permit: Permit, job: str, rank: int) -> bool:
    try:
        permit.check(job, rank)
    except AuthenticationError:
        return False
    return True


def test_a_certificate_without_our_uris_is_for_any_job() -> None:
    assert permit_of({}) is None
    assert of() is None
    assert of("https://example.org", "spiffe://job/a") is None


@pytest.mark.parametrize(
    ("uris", "places"),
    [
        (("reducer://job/a",), [("a", ANY_RANK)]),
        (("reducer://job/a/rank/0", "reducer://job/b"), [("a", 0), ("b", ANY_RANK)]),
        (("reducer://job/a%2Fb%20%C3%BC", "mailto:x"), [("a/b ü", ANY_RANK)]),
        (("reducer://job/a/rank/x", "reducer://job/b"), [("b", ANY_RANK)]),
    ],
)
def test_uris_name_places(uris: tuple[str, ...], places: list[tuple[str, int]]) -> None:
    permit = of(*uris)
    assert permit is not None and list(permit.places) == places


@pytest.mark.parametrize(
    "uri",
    [
        "reducer:job/a", "reducer://job/", "reducer://job", "reducer://job/a/", "REDUCER://job/a",
        "reducer://job/a/rank/", "reducer://job/a/rank/-1", "reducer://job/a/rank/0/x",
        "reducer://job/a?x", "reducer://job/a#x", "reducer://other/a", "reducer://job/a/b",
    ],
)  # fmt: skip
def test_a_uri_that_is_no_place_lets_nobody_in(uri: str) -> None:
    permit = of(uri)
    assert permit is not None
    assert not any(allowed(permit, job, 0) for job in ("", "a", "a/", "a/b"))
    assert str(permit) == "nothing"


def test_a_permit_is_for_its_places_alone() -> None:
    permit = Permit("certificate", (("a", 2), ("b", ANY_RANK)))
    assert allowed(permit, "a", 2) and allowed(permit, "b", 0) and allowed(permit, "b", 7)
    assert not allowed(permit, "a", 1) and not allowed(permit, "c", 2)
    with pytest.raises(
        AuthenticationError, match=r"rank 2 of job 'a' or job 'b'.*rank 0 of job 'c'"
    ):
        permit.check("c", 0)


def test_no_permit_asks_nobody() -> None:
    opened: Any = events.Opened(1)
    assert opened.permit is None
