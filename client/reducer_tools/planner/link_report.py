"""The plans for a slow link as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reducer.columns import aligned
from reducer_tools.planner.link_conclusions import (
    assume,
    conclude_link,
    name_method,
    write_code,
)
from reducer_tools.planner.link_plan import LinkPlan
from reducer_tools.planner.slow_link import Outcome
from reducer_tools.planner.text import (
    format_bytes,
    format_rate,
    format_seconds,
    format_share,
    wrap,
)

_HEAD = ["method", "sent as", "H", "P", "delay", "up", "down", "busy"]
_MARK = "*: busy enough"
_LEGEND = f"up, down: bytes that a worker sends and receives for each step; {_MARK}"
_UNKNOWN = (
    "The answer depends on the time of a step without communication. Name it with --step, or with "
    "--tokens and --tflops, to compare all methods."
)


def link_as_json(plans: Sequence[LinkPlan]) -> dict[str, Any]:
    """The plans as plain values: what they share, and the outcomes for each time of a step."""
    first = plans[0]
    link = first.link
    return {
        "link_gbps": link.gbps,
        "rtt_seconds": link.rtt_seconds,
        "workers": link.workers,
        "reducers": link.reducers,
        "reducer_gbps": link.reducer_gbps,
        "gradient_bytes": first.training.gradient_bytes,
        "overlap": first.training.overlap,
        "busy_wanted": first.wanted,
        "steps": [_plan_as_json(plan) for plan in plans],
        "assumptions": assume(first),
    }


def link_as_text(plans: Sequence[LinkPlan]) -> str:
    """A summary, the verdict, a table of the methods with the chosen one first, and assumptions.

    For several times of a step: a table with the chosen method for each time.
    """
    first = plans[0]
    if len(plans) == 1:
        code = wrap(["In code: " + write_code(first.chosen.method)])
        parts = [_facts(first, one=True), wrap(conclude_link(first)), code, _table(first)]
    else:
        parts = [_facts(first, one=False), wrap([_UNKNOWN]), _table_of_steps(plans)]
    assumptions = ["Assumptions:", *wrap([f"- {text}" for text in assume(first)])]
    return "\n\n".join("\n".join(lines) for lines in [*parts, assumptions])


def _plan_as_json(plan: LinkPlan) -> dict[str, Any]:
    return {
        "compute_seconds": plan.training.compute_seconds,
        "enough": plan.is_enough(plan.chosen),
        "chosen": _outcome_as_json(plan, plan.chosen),
        "methods": [_outcome_as_json(plan, each) for each in plan.outcomes],
        "verdict": conclude_link(plan),
    }


def _outcome_as_json(plan: LinkPlan, outcome: Outcome) -> dict[str, Any]:
    method = outcome.method
    return {
        "method": method.kind,
        "wire": method.wire.name,
        "every": method.every,
        "fragments": method.fragments,
        "delay": method.delay,
        "code": write_code(method),
        "transfer_seconds": outcome.transfer_seconds,
        "wait_seconds": outcome.wait_seconds,
        "busy": outcome.busy,
        "link_busy": outcome.link_busy,
        "sent_bytes": outcome.sent_bytes,
        "received_bytes": outcome.received_bytes,
        "enough": plan.is_enough(outcome),
    }


def _facts(plan: LinkPlan, one: bool) -> list[str]:
    link, training = plan.link, plan.training
    rtt = format_seconds(link.rtt_seconds) if link.rtt_seconds else "0 (see --rtt)"
    facts = [
        ("link of a worker", f"{format_rate(link.gbps)} each way, RTT {rtt}"),
        ("reducers", _describe_reducers(plan)),
        ("gradients", f"{format_bytes(training.gradient_bytes)} a worker in float32"),
        ("wanted", f"machines {format_share(plan.wanted)} busy"),
    ]
    if one:
        facts += [
            ("computation", f"{format_seconds(training.compute_seconds)} a step"),
            ("method", name_method(plan.chosen.method).partition(" with ")[0]),
        ]
    return aligned(facts, left=(0, 1))


def _describe_reducers(plan: LinkPlan) -> str:
    link = plan.link
    if link.reducers == 0:
        return f"hosted by the {link.workers:,} workers"
    if link.reducers is not None:
        rate = format_rate(link.reducer_gbps or link.gbps)
        return f"{link.reducers:,} dedicated at {rate}; hosted ones sum the rest"
    if link.workers is None:
        return "dedicated, as fast as all workers together"
    return f"dedicated, {format_rate(link.workers * link.gbps)} together each way"


def _table(plan: LinkPlan) -> list[str]:
    rest = [each for each in plan.outcomes if each != plan.chosen]
    rows = [[*_HEAD, ""]]
    for each in (plan.chosen, *rest):
        rows.append([*_cells(each), "*" if plan.is_enough(each) else ""])
    return [*aligned(rows, left=(0, 1)), _LEGEND]


def _table_of_steps(plans: Sequence[LinkPlan]) -> list[str]:
    rows = [["step", *_HEAD[:-2], _HEAD[-1], ""]]
    for plan in plans:
        *cells, _, busy = _cells(plan.chosen)
        mark = "*" if plan.is_enough(plan.chosen) else ""
        rows.append([format_seconds(plan.training.compute_seconds), *cells, busy, mark])
    return [*aligned(rows, left=(1, 2)), f"up: bytes that a worker sends for each step; {_MARK}"]


def _cells(outcome: Outcome) -> list[str]:
    method = outcome.method
    streams, local = method.delay > 0, method.kind != "data parallel"
    return [
        method.kind,
        method.wire.name,
        f"{method.every:,}" if local else "-",
        str(method.fragments) if streams else "-",
        str(method.delay) if streams else "-",
        format_bytes(round(outcome.sent_bytes)),
        format_bytes(round(outcome.received_bytes)),
        format_share(outcome.busy),
    ]
