"""The conclusions of a plan as sentences: what is faster, at which price, and the pool's size."""

from __future__ import annotations

from reducer.units import format_count
from reducer_tools.planner import lanes
from reducer_tools.planner.network_time import exact
from reducer_tools.planner.plan import Plan
from reducer_tools.planner.pools import Sizing
from reducer_tools.planner.text import format_price


def conclude(plan: Plan) -> list[str]:
    """Whether reducers or a ring are faster, and the price below which reducers pay off."""
    if plan.cluster.workers == 1:
        return ["A single worker needs no reducers."]
    if plan.to_beat_ring is None:
        return [_conclude_two(plan), *_conclude_connections(plan)]
    return [
        _conclude_times(plan, plan.to_beat_ring),
        *_conclude_prices(plan),
        *_conclude_connections(plan),
        _conclude_lanes(plan),
    ]


def conclude_sizing(sizing: Sizing, reducer_gbps: float) -> list[str]:
    """Whether the third pool is large enough, and remarks about unusual pools."""
    if sizing.world_size == 1:
        return []
    lines = [_conclude_third_pool(sizing, reducer_gbps)]
    if sizing.is_mixed:
        pace = f"{sizing.slowest.name} at {sizing.slowest.gbps:g} Gbit/s"
        lines.append(
            f"The workers' NICs differ: {pace} limits all, and the times are for this rate."
        )
    third = sizing.reducers
    if third is not None and third.pool.accelerator is not None:
        lines.append(f"The reducers' {third.pool.accelerator} are idle: reducers sum on the CPU.")
    return lines


def _conclude_two(plan: Plan) -> str:
    if plan.chosen.winner == "ring":
        count = _take(plan)
        return f"A ring wins: {count}, and no number of reducers beats a ring of two."
    return "No reducers: a ring of two moves as few bytes, and no number of reducers beats it."


def _conclude_times(plan: Plan, least: int) -> str:
    chosen = plan.chosen
    count = format_count(chosen.reducers, "reducer")
    more = f"{least:,} or more beat it, and the gain grows up to {plan.needed:,}"
    if plan.needed == least:
        more = f"{least:,} or more beat it"
    if chosen.winner == "ring":
        return f"A ring wins: {_take(plan)}; {more}."
    if chosen.winner == "neither":
        return f"Neither wins: {count} and a ring take the same time; {more}."
    fewer = f"; with {least - 1:,} or fewer a ring is as fast or faster" if least > 1 else ""
    if chosen.reducers < plan.needed:
        fewer += f"; the gain grows up to {plan.needed:,}"
    reduce = f"reduce{'s' * (chosen.reducers == 1)} {chosen.speedup:.2f}x as fast as a ring"
    return f"Reducers win: {count} {reduce}{fewer}."


def _take(plan: Plan) -> str:
    """The subject and the verb of a sentence about how much longer the reducers take."""
    chosen = plan.chosen
    takes = "takes" if chosen.reducers == 1 else "take"
    times = f"{1 / chosen.speedup:.2f} times as long"
    return f"{format_count(chosen.reducers, 'reducer')} {takes} {times}"


def _conclude_prices(plan: Plan) -> list[str]:
    chosen, cluster = plan.chosen, plan.cluster
    count = format_count(chosen.reducers, "reducer")
    if chosen.break_even_ratio <= 1e-9:
        pay = "pays" if chosen.reducers == 1 else "pay"
        return [f"{count} {pay} off at no price: a step takes no less time."]
    price = f"{chosen.break_even_ratio:.3g} of a worker's price"
    if plan.break_even_price is not None:
        price = f"{format_price(plan.break_even_price)} an hour, {price}"
    known = cluster.step.compute_seconds is not None
    guess = "" if known else ", if a step is only its all-reduce (see --step and --compute)"
    lines = [f"They pay off if one costs less than {price}{guess}."]
    if cluster.ring_cost() is not None and chosen.cost_per_step is not None:
        cheapest = plan.cheapest
        least = f"with {format_count(cheapest.reducers, 'reducer')}" if cheapest else "over a ring"
        lines.append(f"At these prices a step costs least {least}.")
    return lines


def _conclude_connections(plan: Plan) -> list[str]:
    """How many connections a worker needs, and whether it has them; empty without a limit."""
    cluster, reducers = plan.cluster, plan.chosen.reducers
    flow = cluster.flows.gbps
    if flow is None:
        return []
    share = cluster.worker_share(reducers)
    needed = format_count(lanes.connections_needed(share, flow), "connection")
    least = format_count(lanes.lanes_for_connections(share, reducers, flow), "lane")
    need = f"A worker needs {needed} of {flow:g} Gbit/s for its share of {float(share):.3g} Gbit/s"
    lines = [f"{need}: {format_count(reducers, 'reducer')} x {least}."]
    carried = reducers * plan.chosen.lanes * exact(flow)
    if carried < share:
        has = format_count(plan.chosen.lanes, "lane")
        lines.append(f"With {has} its connections carry {float(carried):.3g}: they set the time.")
    return lines


def _conclude_lanes(plan: Plan) -> str:
    cluster, reducers = plan.cluster, plan.chosen.reducers
    count = cluster.recommended_lanes(reducers)
    share = cluster.worker_share(reducers)
    if count > lanes.lanes_for_cpu(share, cluster.workers, reducers):
        why = "for the workers' connections"
    else:
        why = f"one for each {lanes.LANE_GBPS} Gbit/s that it sums"
    cores = -(-count * 4 // 3)
    return (
        f"Give each reducer {format_count(count, 'lane')}, {why}. `--lanes auto` starts as many "
        f"on {format_count(cores, 'core')}."
    )


def _conclude_third_pool(sizing: Sizing, reducer_gbps: float) -> str:
    demand = f"{float(sizing.demand_gbps):g} Gbit/s"
    third = sizing.reducers
    if third is None:
        needed = format_count(sizing.needed(reducer_gbps), "reducer")
        return f"No third pool: {needed} of {reducer_gbps:g} Gbit/s cover the workers' {demand}."
    supply = f"its {float(sizing.supply_gbps):g} Gbit/s"
    if sizing.is_large_enough:
        return f"The third pool is large enough: {supply} cover the workers' {demand}."
    enough = f"{sizing.needed(third.machine.gbps)} x {third.machine.name}"
    lacking = f"{supply} do not cover the workers' {demand}"
    return f"The third pool is too small: {lacking}; {enough} would."
