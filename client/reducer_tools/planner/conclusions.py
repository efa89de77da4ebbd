"""The conclusions of a plan as sentences: how fast, at which price, and the pool's size."""

from __future__ import annotations

from reducer.units import format_count
from reducer_tools.planner import lanes
from reducer_tools.planner.network_time import dedicated_gbps, exact
from reducer_tools.planner.plan import Choice, Plan
from reducer_tools.planner.pools import Sizing
from reducer_tools.planner.text import format_price, format_seconds


def conclude(plan: Plan) -> list[str]:
    """How fast the chosen number of reducers is, and the price below which reducers pay off."""
    if plan.cluster.workers == 1:
        return ["A single worker needs no reducers."]
    if plan.to_beat_ring is None:
        times, prices = _conclude_two(plan), []
    else:
        times, prices = _conclude_times(plan, plan.to_beat_ring), _conclude_prices(plan)
    if not plan.chosen.reducers:
        return [*times, *prices]
    machines = [*_conclude_connections(plan), _conclude_lanes(plan), *_conclude_rate(plan)]
    return [*times, *prices, *machines]


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


def _conclude_two(plan: Plan) -> list[str]:
    chosen, none = plan.chosen, "no number of dedicated reducers is faster"
    if chosen.reducers == 0:
        return [f"Hosted reducers alone reduce as fast as a ring of two, and {none}."]
    count = _count(chosen.reducers)
    if chosen.reducers < plan.needed:
        both = f"{count} and 2 hosted ones reduce as fast as a ring of two, and {none}."
        return [both, _conclude_without(plan)]
    alone = "so do hosted reducers alone"
    return [f"{count} {_reduce(chosen)} as fast as a ring of two, and {alone}: {none}."]


def _conclude_times(plan: Plan, least: int) -> list[str]:
    chosen, count = plan.chosen, _count(plan.chosen.reducers)
    if chosen.reducers == 0:
        return ["Hosted reducers alone reduce as fast as a ring.", _conclude_one_more(plan)]
    fast = f"{chosen.speedup:.2f}x as fast as a ring"
    if chosen.reducers < plan.needed:
        both = f"{count} and {plan.cluster.workers:,} hosted ones reduce {fast}."
        return [both, _conclude_without(plan), _conclude_one_more(plan)]
    rest = f"hosted reducers have no share, and more than {plan.needed:,} gain nothing"
    enough = f"{count} {_reduce(chosen)} {fast}: {rest}."
    return [enough, *([_conclude_fewer(plan, least)] if plan.needed > 1 else [])]


def _conclude_without(plan: Plan) -> str:
    """What hosted reducers gain if there are too few dedicated ones."""
    times = f"{_times_alone(plan.chosen):.2f} times as long"
    never = "With hosted reducers an all-reduce is never slower than a ring"
    return f"{never}; without them this one would take {times}."


def _conclude_fewer(plan: Plan, least: int) -> str:
    """What hosted reducers would gain with fewer dedicated ones than the chosen number."""
    slow = {1: "1", 2: "1 would not beat a ring, and"}
    subject = slow.get(least, f"{least - 1:,} or fewer would not beat a ring, and 1")
    times = f"{_times_alone(plan.cluster.choice(1)):.2f} times as long"
    return (
        "With fewer dedicated reducers, hosted ones sum the rest, and an all-reduce is never "
        f"slower than a ring. Without hosted ones, {subject} would take {times} as with them."
    )


def _conclude_one_more(plan: Plan) -> str:
    first = "One more" if plan.chosen.reducers else "The first"
    saved = format_seconds(plan.chosen.one_more_saves_seconds)
    return (
        f"{first} dedicated reducer saves {saved} of an all-reduce; more than {plan.needed:,} "
        "gain nothing."
    )


def _count(reducers: int) -> str:
    return format_count(reducers, "dedicated reducer")


def _reduce(chosen: Choice) -> str:
    return "reduces" if chosen.reducers == 1 else "reduce"


def _times_alone(choice: Choice) -> float:
    """The time without hosted reducers as a multiple of the time with them."""
    return (choice.alone_seconds or 0.0) / choice.allreduce_seconds


def _conclude_prices(plan: Plan) -> list[str]:
    return [*_conclude_break_even(plan), *_conclude_cheapest(plan)]


def _conclude_break_even(plan: Plan) -> list[str]:
    chosen, cluster = plan.chosen, plan.cluster
    if chosen.break_even_ratio is None:
        return []
    pay = f"{_count(chosen.reducers)} pay{'s' * (chosen.reducers == 1)} off"
    if chosen.break_even_ratio <= 1e-9:
        return [f"{pay} at no price: a step takes no less time."]
    price = f"{chosen.break_even_ratio:.3g} of a worker's price"
    if plan.break_even_price is not None:
        price = f"{format_price(plan.break_even_price)} an hour, {price}"
    known = cluster.step.compute_seconds is not None
    guess = "" if known else ", if a step is only its all-reduce (see --step and --compute)"
    return [f"{pay} if one costs less than {price}{guess}."]


def _conclude_cheapest(plan: Plan) -> list[str]:
    if plan.cheapest is None:
        return []
    count = plan.cheapest.reducers
    least = _count(count) if count else "hosted reducers alone"
    return [f"At these prices a step costs least with {least}."]


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
        carry = f"its connections carry {float(carried):.3g}"
        lines.append(f"With {has} {carry}: hosted reducers sum the rest.")
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
        f"Give each dedicated reducer {format_count(count, 'lane')}, {why}. `--lanes auto` starts "
        f"as many on {format_count(cores, 'core')}."
    )


def _conclude_rate(plan: Plan) -> list[str]:
    """The rate that the workers need to know to find the shares; empty if their default is right.

    Without it, they count a dedicated reducer as fast as the slowest worker (docs/hosted.md).
    """
    cluster = plan.cluster
    rate = dedicated_gbps(cluster.workers, cluster.reducer_gbps, cluster.flows.to_reducer)
    if plan.chosen.reducers >= plan.needed or rate == exact(cluster.worker_gbps):
        return []
    return [
        f"Set REDUCER_DEDICATED_GBPS={float(rate):g} on rank 0's machine for the right shares.",
        f"Set REDUCER_GBPS={cluster.worker_gbps:g} on all workers, too, if /sys does not show it.",
    ]


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
