"""What to try where the plugin refuses or cannot go on, by its own words."""

from __future__ import annotations

import re

from reducer_tools.nccl.rank import Said

_PREFIX = "NET/REDUCER : "
_ADVICE = (
    (r"NCCL_COLLNET_ENABLE is not 1", "export NCCL_COLLNET_ENABLE=1"),
    (
        r"none of REDUCER_ADDRS|names no reducers",
        "export REDUCER_ADDRS=host:2222,... (all reducers, in one order on all ranks)",
    ),
    (r"no reducer answered|unreachable", "start `reducer serve` there, or mend REDUCER_ADDRS"),
    (
        r"wants TLS|no mode tls",
        "reducers in mode psk, their key in REDUCER_KEY_FILE, and no REDUCER_TLS_...",
    ),
    (
        r"\bkey\b|prove|proof",
        "REDUCER_KEY_FILE: the reducers' key file, or that of the job REDUCER_JOB (reducer keygen)",
    ),
    (r"no interface is up", "NCCL_SOCKET_IFNAME must name an interface of this machine"),
    (r"is older than", "install the plugin of this release"),
    (r": expected |is no host:port|listed twice", "mend or unset the variable that it names"),
)


def explain(said: Said) -> tuple[str, str]:
    """Why a rank came no further, in the plugin's words where it has some, and what to try."""
    logged = [text for level, text in said.lines if level == "WARN" or "are not used" in text]
    why = logged[-1].removeprefix(_PREFIX) if logged else said.error
    for pattern, advice in _ADVICE:
        if re.search(pattern, why):
            return why, advice
    return why, "nccl_plugin/README.md has the settings"
