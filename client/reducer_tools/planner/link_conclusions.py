"""The conclusions of a plan for a slow link as sentences: why this method, and what to mind."""

from __future__ import annotations

from reducer.units import format_count
from reducer_tools.planner.link_plan import PROVEN_EVERY, USUAL_EVERY, LinkPlan
from reducer_tools.planner.slow_link import Method, Outcome
from reducer_tools.planner.text import format_bytes, format_rate, format_seconds, format_share
from reducer_tools.planner.wires import E3M0

# What a lane lets a worker send before it answers: the default of `reducer serve --credit`.
CREDIT = 4 << 20
# Above this part of the time, a little less bandwidth than planned makes the machines wait.
_TIGHT = 0.9


def conclude_link(plan: LinkPlan) -> list[str]:
    """The chosen method, why it and no simpler one, and warnings."""
    return [_conclude_choice(plan), *_conclude_others(plan), *_warn(plan)]


def assume(plan: LinkPlan) -> list[str]:
    """What the times assume, as sentences."""
    hidden = format_share(plan.training.overlap)
    sizes = (
        "A worker is all machines that share the link. In an exchange it sends and receives N "
        "times the bytes of the format, where N is its gradients in float32: 1/2 for bfloat16, "
        "260/1024 for int8, 132/1024 for e3m0. Packet headers add 4.5 %."
    )
    times = (
        "An exchange takes the transfer and one RTT. The link has its rate in both directions at "
        "once, and nothing else uses it."
    )
    streaming = (
        "Streaming DiLoCo: each of P fragments, of N/P bytes, is exchanged once in H steps. The "
        "machines take `delay` steps during an exchange, and then wait for its end."
    )
    return [
        sizes,
        times,
        f"Data parallel: {hidden} of the computation hides the transfer (--overlap).",
        "DiLoCo: the machines stop for an exchange after every H steps.",
        streaming,
        "All workers compute at the same speed. Rounding and summing take no time.",
    ]


def name_method(method: Method) -> str:
    """The method in words, such as "DiLoCo (float32) with H = 100"."""
    name = f"{method.kind} ({method.wire.name})"
    if method.kind == "data parallel":
        return f"Data parallel training ({method.wire.name})"
    if method.kind == "DiLoCo":
        return f"{name} with H = {method.every:,}"
    delay = format_count(method.delay, "step")
    return f"{name} with H = {method.every:,}, {method.fragments} fragments and a delay of {delay}"


def write_code(method: Method) -> str:
    """The method in the client's API."""
    options = method.wire.arguments
    if method.kind == "data parallel":
        feedback = "error_feedback=True" if method.wire.is_quantised else ""
        return f"attach({', '.join(filter(None, ('model, group', options, feedback)))})"
    words = ["model, optimizer, group", f"every={method.every}"]
    if method.fragments > 1:
        words += [f"fragments={method.fragments}", f"delay={method.delay}", "keep_local=0.5"]
        words.append("outer=OuterSGD(lr=0.4)")
    return f"DiLoCo({', '.join([*words, *([options] if options else [])])})"


def _conclude_choice(plan: LinkPlan) -> str:
    chosen = plan.chosen
    busy = f"keeps the machines {format_share(chosen.busy)} busy"
    reason = _explain(chosen, plan.training.compute_seconds, plan.link.rtt_seconds)
    if plan.is_enough(chosen):
        return f"{name_method(chosen.method)} {busy}: {reason}."
    return (
        f"No method keeps the machines {format_share(plan.wanted)} busy over this link: use a "
        f"faster link, or larger batches, whose steps take longer. {name_method(chosen.method)} "
        f"{busy}: {reason}."
    )


def _explain(outcome: Outcome, compute: float, rtt: float) -> str:
    method = outcome.method
    if method.kind == "data parallel":
        whole = format_seconds(outcome.transfer_seconds + rtt)
        return (
            f"an all-reduce takes {whole}, and a step of {format_seconds(compute)} waits "
            f"{format_seconds(outcome.wait_seconds)} for it"
        )
    steps = f"{method.every:,} steps take {format_seconds(method.every * compute)}"
    if method.kind == "DiLoCo":
        return f"{steps}, and an exchange {format_seconds(outcome.transfer_seconds + rtt)}"
    one = outcome.transfer_seconds / method.fragments + rtt
    delay = format_count(method.delay, "step")
    takes = "take" if method.delay > 1 else "takes"
    during = f"the {delay} of the delay {takes} {format_seconds(method.delay * compute)}"
    return f"the exchange of a fragment takes {format_seconds(one)}, and {during}"


def _conclude_others(plan: LinkPlan) -> list[str]:
    """What the simplest methods reach, and which method needs the smallest H."""
    chosen = plan.chosen
    if chosen.method.kind == "data parallel":
        return []
    simple = [each for each in plan.outcomes if each.method.kind == "data parallel"]
    best = max(simple, key=lambda each: each.busy)
    reached = (
        f"Data parallel training keeps them {format_share(simple[0].busy)} busy with float32, and "
        f"{format_share(best.busy)} with {best.method.wire.name}."
    )
    lines = [_conclude_bytes(plan), reached]
    local = [each for each in plan.outcomes if each not in simple and plan.is_enough(each)]
    least = min(local, key=lambda each: each.method.every, default=chosen).method
    if least.every < chosen.method.every:
        name = f"{least.kind} ({least.wire.name})"
        lines.append(f"With the fewest local steps, H = {least.every:,}, {name} is enough.")
    return lines


def _conclude_bytes(plan: LinkPlan) -> str:
    whole = plan.training.gradient_bytes
    sent, received = whole / plan.chosen.sent_bytes, whole / plan.chosen.received_bytes
    if sent == received:
        return f"A worker sends and receives {sent:,.0f} times fewer bytes than float32 gradients."
    fewer = f"A worker sends {sent:,.0f} times fewer bytes than float32 gradients"
    return f"{fewer}, and receives {received:,.0f} times fewer."


def _warn(plan: LinkPlan) -> list[str]:
    method, link = plan.chosen.method, plan.link
    lines = [] if method.kind == "data parallel" else _warn_of_local_steps(method)
    if method.wire.is_quantised and method.kind == "data parallel":
        lines.append(
            "int8 needs error feedback: without it, what rounding takes from a gradient is lost."
        )
    if method.wire == E3M0:
        lines.append(
            "The results are sent in e3m0, too, while the Streaming DiLoCo paper rounds only what "
            'a worker sends: compare the loss with that of wire_dtype="e3m0", whose results are '
            "bfloat16."
        )
    if plan.chosen.link_busy > _TIGHT:
        share = format_share(plan.chosen.link_busy)
        lines.append(
            f"The link carries bytes for {share} of the time: a little less bandwidth makes the "
            "machines wait. Plan with the rate that is left for this training."
        )
    if link.bytes_on_the_way > CREDIT:
        lines.append(
            f"{format_rate(link.gbps)} and this RTT keep {format_bytes(link.bytes_on_the_way)} in "
            "flight. Let --credit x lanes x reducers, and the largest TCP buffers of both sides "
            "(net.ipv4.tcp_rmem and tcp_wmem), reach this size."
        )
    return lines


def _warn_of_local_steps(method: Method) -> list[str]:
    proven = (
        "DiLoCo is another algorithm than data parallel training: compare the loss in a short run. "
        "In its paper (arXiv 2311.08105) the perplexity with H = 500 was 15.02, and 15.30 with "
        "data parallel training."
    )
    lines = [proven]
    if method.every > PROVEN_EVERY:
        lines.append(
            f"Warning: H = {method.every:,} is beyond the proven 500 and costs accuracy. A faster "
            "link or larger batches, whose steps take longer, need a smaller H."
        )
    elif method.every > USUAL_EVERY and method.kind == "Streaming DiLoCo":
        lines.append("Streaming DiLoCo was published with H = 30 and 100 (arXiv 2501.18512).")
    return lines
