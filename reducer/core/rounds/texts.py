"""Texts about rounds: ranks that disagree, and ranks that are waited for."""

from __future__ import annotations

from typing import Any, Final

from reducer.core.rounds.descriptor import Descriptor
from reducer.core.rounds.key import Key
from reducer.core.rounds.round import Round

_GROUPS_SHOWN: Final = 8
_RANKS_SHOWN: Final = 16


def mismatch_text(round_: Round, verdict: dict[int, Descriptor]) -> str:
    """The verdict for all ranks: what each rank has submitted."""
    groups: dict[Descriptor, list[int]] = {}
    for rank in sorted(verdict):
        groups.setdefault(verdict[rank], []).append(rank)
    shown = list(groups.items())[:_GROUPS_SHOWN]
    parts = [f"{ranks_text(ranks)}: {described}" for described, ranks in shown]
    more = f"; and {len(groups) - len(parts)} more" if len(groups) > len(parts) else ""
    return (
        f"the ranks disagree on key {round_.key.label} round {round_.number}: "
        f"{'; '.join(parts)}{more}. "
        "Submit the same call, op, dtype and shape on every rank"
    )


def ranks_text(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_RANKS_SHOWN]))
    more = f" and {len(ranks) - _RANKS_SHOWN} more" if len(ranks) > _RANKS_SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def stall_text(round_: Round, now: float) -> str:
    absent = round_.waiting_for()
    return (
        f"round {round_.number} of key {round_.key.label} has waited "
        f"{now - round_.opened_at:.1f} s for {ranks_text(absent)}"
    )


def about(round_: Round) -> dict[str, object]:
    """The fields of a log line about a round, besides job and run."""
    return {"key": _name(round_.key), "round": round_.number}


def stall_entry(round_: Round, now: float) -> dict[str, Any]:
    """One row of a STALL frame."""
    absent = round_.waiting_for()
    return {
        "key": _name(round_.key),
        "round": round_.number,
        "age_ms": int((now - round_.opened_at) * 1000),
        "absent": absent[:_RANKS_SHOWN],
        "absent_count": len(absent),
    }


def _name(key: Key) -> str:
    return key.name or f"{key.id:#018x}"
