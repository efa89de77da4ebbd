"""The status page of one reducer: a static file, and the numbers that it requests once a second.

The page is bounded, whatever the jobs do. Names come from strangers, so the page treats them as
text. It loads nothing from elsewhere, and its policy forbids that.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from reducer.core.measures.ranking import MAX_RANKS
from reducer.server.daemon.admin import Answer
from reducer.server.pipe.snapshot import Snapshot
from reducer.status.summary import RunStatus, summarize
from reducer.status.tables import TableStatus
from reducer.status.tables_text import mode_text, now_text, staleness_text, version_text

_FILE: Final = Path(__file__).with_name("status_page.html")
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


def numbers(address: str, port: int, snapshot: Snapshot) -> dict[str, Any]:
    """Returns what /api/status shows: the lanes combined, long lists cut."""
    summary = summarize({address: snapshot.as_json()})
    return {
        "port": port,
        "started": snapshot.monotonic_start,
        "clock": snapshot.monotonic_now,
        "kernels": ", ".join(sorted({lane.numbers.kernels for lane in snapshot.lanes})),
        "reducer": asdict(summary.reducers[0]),
        "runs": [_cut(run) for run in summary.runs[:MAX_RUNS]],
        "more_runs": max(0, len(summary.runs) - MAX_RUNS),
        "ended": [asdict(run) for run in summary.ended[:MAX_RUNS]],
        "tables": [_table(table) for table in summary.tables[:MAX_TABLES]],
        "more_tables": summary.more_tables + max(0, len(summary.tables) - MAX_TABLES),
    }


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
