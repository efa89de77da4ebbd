"""Errors of the client: one class for each cause; pickling keeps all attributes."""

from __future__ import annotations

import pickle

import pytest

from reducer.wire.codes import ErrorCode
from reducer_client import errors


def test_every_code_has_a_class_of_its_own() -> None:
    kinds = {
        code: type(errors.from_engine((int(code), "text", -1, "", "", -1))) for code in ErrorCode
    }
    assert len(set(kinds.values())) == len(ErrorCode) - 1  # CORRUPTED is an IntegrityError, too
    assert kinds[ErrorCode.PEER_LOST] is errors.PeerLostError
    assert kinds[ErrorCode.INTERNAL] is errors.ReducerError


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_survives_a_pickle_with_its_attributes(name: str) -> None:
    kind = getattr(errors, name)
    error = kind("who and what", rank=3, round=7, key="layer1", reason="lost")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert isinstance(copy, RuntimeError)
    assert str(copy) == "who and what"
    assert (copy.rank, copy.round, copy.key, copy.reason) == (3, 7, "layer1", "lost")


def test_what_the_engine_leaves_out_is_none() -> None:
    error = errors.from_engine((6, "text", -1, "", "", -1))
    assert (error.rank, error.round, error.key, error.reason) == (None, None, None, "")
    error = errors.from_engine((6, "text", 0, "left", "k", 0))
    assert (error.rank, error.round, error.key, error.reason) == (0, 0, "k", "left")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("closed", errors.ClosedError),
        ("forked", errors.ClosedError),
        ("refused", errors.ReducerUnavailableError),
    ],
)
def test_a_group_that_is_closed_is_told_from_a_reducer_that_is_gone(
    reason: str, kind: type[Exception]
) -> None:
    assert type(errors.from_engine((9, "text", -1, reason, "", -1))) is kind


def test_a_timeout_is_a_timeout_error() -> None:
    assert isinstance(errors.from_engine((10, "text", -1, "", "", -1)), TimeoutError)
