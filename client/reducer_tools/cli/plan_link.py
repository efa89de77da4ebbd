"""The options of ``reducer plan --link``, and its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from reducer_tools.cli.sizes import count_option, rate_option, seconds_option, share_option
from reducer_tools.planner.link_report import link_as_json, link_as_text
from reducer_tools.planner.link_request import LinkRequest, answer_link
from reducer_tools.planner.slow_link import Link

_OPTIONS = (
    click.option(
        "--link",
        metavar="RATE",
        callback=rate_option,
        help="Rate of the slow link of a worker, each way, such as 200mbit or 5gbit. The command "
        "then says how to train over it: with which wire dtype, or with DiLoCo.",
    ),
    click.option(
        "--rtt",
        metavar="TIME",
        callback=seconds_option,
        help="Round trip time between a worker and the reducers, such as 30ms, for --link. "
        "[default: 0]",
    ),
    click.option(
        "--busy",
        metavar="SHARE",
        callback=share_option,
        help="Share of the time in which the machines must compute, for --link. [default: 95%]",
    ),
    click.option(
        "--tokens",
        metavar="COUNT",
        callback=count_option,
        help="Tokens of a worker's step, for --link without --step. The computation then takes 6 x "
        "parameters x tokens / --tflops.",
    ),
    click.option(
        "--tflops",
        type=float,
        help="10^12 operations a second that a worker reaches with this model, for --tokens.",
    ),
)
_ONLY_WITH_LINK = ("rtt", "busy", "tokens", "tflops")
# The model of a slow link has no place for these.
_NEVER_WITH_LINK = (
    "worker_gbps",
    "worker_machine",
    "worker_price",
    "reducer_machine",
    "reducer_price",
    "flow_gbps",
    "lanes",
    "dtype",
    "spec",
    "machines",
    "plot",
)
_WHY = {
    "worker_gbps": ": --link is the rate of a worker",
    "dtype": ": the answer compares the wire dtypes",
    "lanes": ": --link assumes enough lanes and connections",
    "flow_gbps": ": name the rate that a worker reaches with --link",
}


def link_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of `answer`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def refuse_without_link(given: dict[str, Any]) -> None:
    """Raise ValueError for an option that only `answer` knows."""
    for name in _ONLY_WITH_LINK:
        if given[name] is not None:
            raise ValueError(f"{name}: expected only with --link")


def answer(given: dict[str, Any]) -> str:
    """The answer to all options, as text or JSON. Raises ValueError for an invalid option."""
    for name in _NEVER_WITH_LINK:
        if given[name] is not None:
            option = name.replace("_", "-")
            raise ValueError(f"{option}: cannot be combined with --link{_WHY.get(name, '')}")
    plans = answer_link(_make_request(given))
    return json.dumps(link_as_json(plans)) if given["as_json"] else link_as_text(plans)


def _make_request(given: dict[str, Any]) -> LinkRequest:
    rates = {name: given[name] for name in ("workers", "reducers", "reducer_gbps")}
    return LinkRequest(
        link=Link(given["link"], given["rtt"] or 0.0, **rates),
        gradient_bytes=_gradient_bytes(given),
        step_seconds=given["step"],
        compute_seconds=given["compute"],
        tokens=given["tokens"],
        tflops=given["tflops"],
        overlap=given["overlap"],
        wanted=given["busy"],
    )


def _gradient_bytes(given: dict[str, Any]) -> int:
    size, parameters = given["gradient_bytes"], given["parameters"]
    if (size is None) == (parameters is None):
        got = "none" if size is None else "both"
        raise ValueError(f"parameters: expected --params or --gradient-bytes, got {got}")
    return int(size) if parameters is None else int(parameters) * 4
