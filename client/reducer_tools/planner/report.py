"""A plan as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from reducer.columns import aligned
from reducer.units import format_count
from reducer_tools.planner import cores
from reducer_tools.planner.conclusions import conclude, conclude_sizing
from reducer_tools.planner.plan import Choice, Plan
from reducer_tools.planner.pools import Sizing
from reducer_tools.planner.text import (
    format_bytes,
    format_price,
    format_seconds,
    wrap,
)

_LEGEND = "reducers: dedicated ones; the workers host others, except in `without hosted`"
# Costs are shown per thousand steps, because the cost of one step has too many zeros.
_STEPS = 1000


def as_json(plan: Plan, sizing: Sizing | None = None) -> dict[str, Any]:
    """The plan as plain values. Unknown values are null."""
    cluster, cheapest = plan.cluster, plan.cheapest
    found = {
        "workers": cluster.workers,
        "worker_gbps": cluster.worker_gbps,
        "reducer_gbps": cluster.reducer_gbps,
        "flow_gbps": cluster.flows.gbps,
        "gradient_bytes": cluster.gradient_bytes,
        "compute_seconds": cluster.step.compute_seconds,
        "overlap": cluster.step.overlap,
        "worker_price": cluster.prices.worker,
        "reducer_price": cluster.prices.reducer,
        **asdict(plan.chosen),
        "break_even_price": plan.break_even_price,
        "ring_seconds": cluster.ring_seconds(),
        "ring_step_seconds": cluster.ring_step_seconds(),
        "ring_cost_per_step": cluster.ring_cost(),
        "reducers_needed": plan.needed,
        "reducers_to_beat_ring": plan.to_beat_ring,
        "recommended_lanes": cluster.recommended_lanes(plan.chosen.reducers),
        "reducer_cores": cluster.reducer_cores(plan.chosen.reducers),
        "worker_cores": cluster.worker_cores(plan.chosen.reducers),
        "cheapest_reducers": cheapest.reducers if cheapest else None,
        "verdict": conclude(plan),
        "choices": [asdict(choice) for choice in plan.choices],
    }
    if sizing is not None:
        found["job"] = _sizing_as_json(sizing, cluster.reducer_gbps)
    return found


def as_text(plan: Plan, sizing: Sizing | None = None) -> str:
    """The pools, a summary, the verdict, and a table of the numbers of reducers.

    For one worker there is no summary and no table.
    """
    parts = [wrap(conclude(plan))]
    if plan.cluster.workers > 1:
        parts = [_facts(plan), *parts, _table(plan)]
    if sizing is not None:
        sentences = conclude_sizing(sizing, plan.cluster.reducer_gbps)
        parts = [_pools(sizing), wrap(sentences), *parts]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _sizing_as_json(sizing: Sizing, reducer_gbps: float) -> dict[str, Any]:
    third = sizing.reducers
    return {
        "pools": [
            asdict(rated.pool)
            | {"gbps": rated.machine.gbps, "egress_gbps": float(rated.egress_gbps)}
            for rated in sizing.pools
        ],
        "worker_egress_gbps": float(sizing.demand_gbps),
        "reducer_egress_gbps": float(sizing.supply_gbps),
        "large_enough": sizing.is_large_enough,
        "reducers_needed": sizing.needed(third.machine.gbps if third else reducer_gbps),
        "verdict": conclude_sizing(sizing, reducer_gbps),
    }


def _pools(sizing: Sizing) -> list[str]:
    rows = [["pool", "replicas", "machine", "Gbit/s", "egress"]]
    for rated in sizing.pools:
        pool, gbps = rated.pool, f"{rated.machine.gbps:g}"
        egress = f"{float(rated.egress_gbps):g}"
        rows.append([pool.role, str(pool.replicas), pool.names[0], gbps, egress])
    return aligned(rows, left=(0, 2))


def _facts(plan: Plan) -> list[str]:
    cluster, chosen = plan.cluster, plan.chosen
    count = format_count(chosen.reducers, "reducer")
    facts = [
        ("workers", f"{cluster.workers:,} at {cluster.worker_gbps:g} Gbit/s"),
        ("reducers needed", f"{plan.needed:,} at {cluster.reducer_gbps:g} Gbit/s"),
        ("to beat a ring", _describe_least(plan.to_beat_ring)),
        *_facts_of_a_reducer(plan),
        ("cores of a worker", cores.describe(cluster.worker_cores(chosen.reducers))),
        ("gradients", format_bytes(cluster.gradient_bytes) + " a worker"),
        (f"all-reduce, {count}", format_seconds(chosen.allreduce_seconds)),
        ("all-reduce, ring", format_seconds(cluster.ring_seconds())),
        ("speedup", f"{chosen.speedup:.2f}x"),
    ]
    if cluster.step.compute_seconds is not None:
        facts += [
            (f"step, {count}", format_seconds(chosen.step_seconds)),
            ("step, ring", format_seconds(cluster.ring_step_seconds())),
            ("speedup of a step", f"{chosen.step_speedup:.2f}x"),
        ]
    ring_cost = cluster.ring_cost()
    if ring_cost is not None and chosen.cost_per_step is not None:
        facts.append((f"{_STEPS:,} steps, {count}", format_price(_STEPS * chosen.cost_per_step)))
        facts.append((f"{_STEPS:,} steps, ring", format_price(_STEPS * ring_cost)))
    return aligned(facts, left=(0, 1))


def _facts_of_a_reducer(plan: Plan) -> list[tuple[str, str]]:
    if not plan.chosen.reducers:
        return []
    busy = cores.describe(plan.cluster.reducer_cores(plan.chosen.reducers))
    return [("lanes of a reducer", _describe_lanes(plan)), ("cores of a reducer", busy)]


def _describe_least(reducers: int | None) -> str:
    if reducers is None:
        return "impossible: a ring of two moves no more bytes"
    return f"{reducers:,} or more without hosted ones"


def _describe_lanes(plan: Plan) -> str:
    recommended = plan.cluster.recommended_lanes(plan.chosen.reducers)
    more = f" ({recommended:,} recommended)" if plan.chosen.lanes != recommended else ""
    flow = plan.cluster.flows.gbps
    limit = "" if flow is None else f", {flow:g} Gbit/s a connection"
    return f"{plan.chosen.lanes:,}{more}{limit}"


def _table(plan: Plan) -> list[str]:
    """A line for a ring and one for each number of reducers. Unknown columns are left out."""
    cluster, choices = plan.cluster, plan.choices
    rows = [["", "", "", "one more", "without"]]
    rows.append(["reducers", "all-reduce", "speedup", "saves", "hosted"])
    rows.append(["ring", format_seconds(cluster.ring_seconds()), "1.00x", "-", "-"])
    rows += [_time_cells(choice) for choice in choices]
    if cluster.step.compute_seconds is not None:
        step = format_seconds(cluster.ring_step_seconds())
        _add(rows, ["", "step", step, *(format_seconds(c.step_seconds) for c in choices)])
        _add(rows, ["", "speedup", "1.00x", *(f"{c.step_speedup:.2f}x" for c in choices)])
    costs = [cluster.ring_cost(), *(choice.cost_per_step for choice in choices)]
    known = [format_price(_STEPS * cost) for cost in costs if cost is not None]
    if len(known) == len(costs):
        _add(rows, [f"{_STEPS:,}", "steps", *known])
    _add(rows, ["", "", "", *("*" if choice == plan.chosen else "" for choice in choices)])
    return [*aligned(rows), _LEGEND]


def _add(rows: list[list[str]], column: list[str]) -> None:
    for row, cell in zip(rows, column, strict=True):
        row.append(cell)


def _time_cells(choice: Choice) -> list[str]:
    saves, alone = choice.one_more_saves_seconds, choice.alone_seconds
    return [
        f"{choice.reducers:,}",
        format_seconds(choice.allreduce_seconds),
        f"{choice.speedup:.2f}x",
        format_seconds(saves) if saves else "-",
        "-" if alone is None else format_seconds(alone),
    ]
