"""Settings of elastic jobs, from arguments and environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

_RUN = "main"


def resolve_count(
    name: str, variable: str, given: int | None, default: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:  # fmt: skip
    """A number from 1 on: the given one, else the variable's, else the default.

    Raises ValueError, which names the bad value, or what to set if there is no value.
    """
    env = os.environ if environ is None else environ
    text = env.get(variable, "") if given is None else str(given)
    if not text and default is not None:
        return default
    if not text.isdigit() or int(text) < 1:
        source = variable if given is None else name
        raise ValueError(
            f"{source}={text!r}: expected a number from 1 on"
            + ("" if text else f": give {name}, or set {variable}")
        )
    return int(text)


def resolve_workers(given: int | None = None, environ: Mapping[str, str] | None = None) -> int:
    """The number of workers with which the job starts. Raises ValueError."""
    return resolve_count("workers", "REDUCER_WORKERS", given, environ=environ)


def resolve_run(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The run id, from REDUCER_RUN_ID alone: launchers give each start of a worker another one."""
    env = os.environ if environ is None else environ
    return given or env.get("REDUCER_RUN_ID", "") or _RUN


def find_service(environ: Mapping[str, str] | None = None) -> str:
    """The name whose addresses are the reducers' (``name:port``); "" if they do not change."""
    return (os.environ if environ is None else environ).get("REDUCER_DISCOVER", "")


def resolve_wish(given: int | None, environ: Mapping[str, str] | None = None) -> int:
    """The rank that this process would like to have; any, if it has no wish."""
    env = os.environ if environ is None else environ
    text = env.get("REDUCER_RANK", "")
    if given is not None:
        return given
    return int(text) if text.isdigit() else 1 << 31
