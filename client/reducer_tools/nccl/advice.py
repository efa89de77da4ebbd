"""Advice for a plugin that refuses or fails, chosen by the text of its log."""

from __future__ import annotations

import re

from reducer_tools.nccl.rank import StepResult

_PREFIX = "NET/REDUCER : "
_ADVICE = (
    (r"NCCL_COLLNET_ENABLE is not 1", "export NCCL_COLLNET_ENABLE=1"),
    (
        r"none of REDUCER_ADDRS|names no reducers",
        "export REDUCER_ADDRS=host:2222,... (all reducers, in one order on all ranks)",
    ),
    (r"no reducer answered|unreachable", "start `reducer serve` there, or correct REDUCER_ADDRS"),
    (
        r"wants TLS|no mode tls",
        "reducers in mode psk, their key in REDUCER_KEY_FILE, and no REDUCER_TLS_...",
    ),
    (
        r"\bkey\b|prove|proof",
        "REDUCER_KEY_FILE: the key file of the reducers or of the job REDUCER_JOB (reducer keygen)",
    ),
    (r"no interface is up", "NCCL_SOCKET_IFNAME must name an interface of this machine"),
    (r"is older than", "install the plugin of this release"),
    (r": expected |is no host:port|listed twice", "correct or unset that variable"),
)


def explain(result: StepResult) -> tuple[str, str]:
    """(why a rank failed, what to try). The cause is the plugin's log line if there is one."""
    logged = [text for level, text in result.lines if level == "WARN" or "are not used" in text]
    why = logged[-1].removeprefix(_PREFIX) if logged else result.error
    for pattern, advice in _ADVICE:
        if re.search(pattern, why):
            return why, advice
    return why, "nccl_plugin/README.md has the settings"
