"""The status page: a static file, and the numbers that it requests once a second.

The page shows one reducer, and the jobs on all reducers that this reducer finds (`Peers`).

The page is bounded, whatever the jobs do. Names come from strangers, so the page treats them as
text. It loads nothing from elsewhere, and its policy forbids that.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from reducer.core.measures.ranking import MAX_RANKS
from reducer.server.daemon.admin import Answer
from reducer.server.daemon.peers import Answers
from reducer.server.pipe.snapshot import Snapshot
from reducer.status.summary import RunStatus, summarize
from reducer.status.tables import TableStatus
from reducer.status.tables_text import mode_text, now_text, staleness_text, version_text

_FILE: Final = Path(__file__).with_name("status_page.html")
ALONE: Final = Answers()
MAX_RUNS: Final = 64
MAX_TABLES: Final = 64


@functools.cache
def page() -> Answer:
    """The file, with a policy that allows only its own style and script."""
    text = _FILE.read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; "
        f"style-src {_hash(text, 'style')}; script-src {_hash(text, 'script')}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Answer(200, "text/html; charset=utf-8", text.encode(), policy)


def _hash(text: str, element: str) -> str:
    (content,) = re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def numbers(address: str, snapshot: Snapshot, peers: Answers = ALONE) -> dict[str, Any]:
    """Returns what /api/status shows: the lanes of all reducers combined, long lists cut."""
    own = snapshot.as_json()
    name = next((peer for peer, found in peers.stats.items() if _is_same(found, own)), address)
    others = {at: found for at, found in peers.stats.items() if not _is_same(found, own)}
    summary = summarize({name: own, **others})
    (reducer,) = (each for each in summary.reducers if each.address == name)
    return {
        "address": address,
        "started": snapshot.monotonic_start,
        "clock": snapshot.monotonic_now,
        "kernels": ", ".join(sorted({lane.numbers.kernels for lane in snapshot.lanes})),
        "reducer": asdict(reducer),
        "reducers": [{**asdict(each), "state": each.state} for each in summary.reducers],
        "silent": peers.errors,
        "runs": [_cut(run) for run in summary.runs[:MAX_RUNS]],
        "more_runs": max(0, len(summary.runs) - MAX_RUNS),
        "ended": [asdict(run) for run in summary.ended[:MAX_RUNS]],
        "tables": [_table(table) for table in summary.tables[:MAX_TABLES]],
        "more_tables": summary.more_tables + max(0, len(summary.tables) - MAX_TABLES),
    }


def _is_same(found: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether both are of one daemon: its clocks at the start tell it from any other."""
    return all(found.get(name) == own[name] for name in ("started", "started_at"))


def _cut(run: RunStatus) -> dict[str, Any]:
    found = asdict(run)
    found["ranks"] = found["ranks"][:MAX_RANKS]
    found["absent"] = found["absent"][:MAX_RANKS]
    return found


def _table(table: TableStatus) -> dict[str, Any]:
    found = asdict(table)
    found["lost"] = found["lost"][:MAX_RANKS]
    found["late"] = found["late"][:MAX_RANKS]
    found["texts"] = {
        "mode": mode_text(table),
        "version": version_text(table),
        "staleness": staleness_text(table),
        "now": now_text(table),
    }
    return found
