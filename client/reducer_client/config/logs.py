"""``REDUCER_DEBUG`` and ``REDUCER_LOG_FORMAT``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from reducer.log import Debug, parse_debug


def resolve_debug(environ: Mapping[str, str] | None = None) -> tuple[Debug, str] | None:
    """The values of REDUCER_DEBUG and REDUCER_LOG_FORMAT; None if REDUCER_DEBUG is not set.

    Raises ValueError, which names the variable and the bad value.
    """
    env = os.environ if environ is None else environ
    text, form = env.get("REDUCER_DEBUG", ""), env.get("REDUCER_LOG_FORMAT", "") or "text"
    try:
        wanted = parse_debug(text)
    except ValueError as error:
        raise ValueError(f"REDUCER_DEBUG={text!r}: {error}") from None
    if form not in ("text", "json"):
        raise ValueError(f"REDUCER_LOG_FORMAT={form!r}: expected text or json")
    return None if wanted is None else (wanted, form)
