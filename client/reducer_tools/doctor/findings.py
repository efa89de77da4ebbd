"""What the doctor has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HERE = "this host"


@dataclass(frozen=True)
class Finding:
    """A fault: a job that starts here and now fails. A warning: it runs, but not as it could.

    ``code`` is a short name for programs and tables, such as ``closed-port``; ``text`` says what
    was found, what was expected and what to try.
    """

    level: Literal["fault", "warning"]
    code: str
    subject: str
    text: str


def fault(code: str, subject: str, text: str) -> Finding:
    return Finding("fault", code, subject, text)


def warning(code: str, subject: str, text: str) -> Finding:
    return Finding("warning", code, subject, text)
