"""The findings of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HERE = "this host"


@dataclass(frozen=True)
class Finding:
    """One finding about a reducer or the host.

    With a fault, a job that starts on this host now would fail. With a warning, a job runs, but
    worse than it could. ``subject`` is the reducer's address or HERE. ``code`` is a short name for
    programs and tables, such as ``closed-port``. ``text`` says what was found, what was expected
    and what to try; lines after the first are commands.
    """

    level: Literal["fault", "warning"]
    code: str
    subject: str
    text: str


def fault(code: str, subject: str, text: str) -> Finding:
    return Finding("fault", code, subject, text)


def warning(code: str, subject: str, text: str) -> Finding:
    return Finding("warning", code, subject, text)
