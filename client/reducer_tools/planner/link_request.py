"""Makes the plans for a slow link from options: one plan for each time of a step."""

from __future__ import annotations

from dataclasses import dataclass

from reducer_tools.planner import cost, network_time
from reducer_tools.planner.link_plan import LinkPlan, check_wanted, make_link_plan
from reducer_tools.planner.slow_link import Link, Training

WANTED = 0.95
# The fraction of backward, about two thirds of the computation (see `cost.step_seconds`).
OVERLAP = 2 / 3
# Times of a step for which the answer is given if the options name none.
STEP_TIMES = (0.3, 1.0, 3.0, 10.0, 30.0)
_FLOPS_PER_PARAMETER = 6  # of a token: forward 2, backward 4 (Kaplan and others, 2020, section 2.1)
_FLOAT32 = 4


@dataclass(frozen=True)
class LinkRequest:
    """The options of a plan for a slow link. None means that the value is derived, or unknown.

    Attributes:
        gradient_bytes: bytes of a worker's gradients in float32.
        step_seconds, compute_seconds: the time of a step without communication; one of them.
        tokens, tflops: tokens of a worker's step, and the 10^12 operations a second that the
            worker reaches with this model. Both together replace the time of a step.
        overlap: the fraction of the computation that hides the all-reduces of data parallel
            training.
        wanted: the part of the time in which the machines must compute.
    """

    link: Link
    gradient_bytes: int
    step_seconds: float | None = None
    compute_seconds: float | None = None
    tokens: int | None = None
    tflops: float | None = None
    overlap: float | None = None
    wanted: float | None = None


def answer_link(request: LinkRequest) -> list[LinkPlan]:
    """One plan if the time of a step is known, else one for each of `STEP_TIMES`.

    Raises ValueError with field, expected and got for an invalid option.
    """
    wanted = WANTED if request.wanted is None else request.wanted
    check_wanted(wanted)
    overlap = OVERLAP if request.overlap is None else request.overlap
    known = _find_seconds(request)
    return [
        make_link_plan(Training(request.gradient_bytes, seconds, overlap), request.link, wanted)
        for seconds in (STEP_TIMES if known is None else (known,))
    ]


def _find_seconds(request: LinkRequest) -> float | None:
    step, compute = request.step_seconds, request.compute_seconds
    if step is not None and compute is not None:
        raise ValueError("step, compute: expected one of them, got both")
    known = compute if step is None else step
    if known is not None:
        cost.check_amount("step" if compute is None else "compute", "seconds", known)
    if request.tokens is None and request.tflops is None:
        return known
    if known is not None:
        raise ValueError("tokens, tflops: expected only without --step and --compute, got both")
    if request.tokens is None or request.tflops is None:
        missing = "tokens" if request.tokens is None else "tflops"
        raise ValueError(f"{missing}: expected --tokens and --tflops together, got only one")
    network_time.check_positive("tflops", request.tflops)
    parameters = request.gradient_bytes / _FLOAT32
    return _FLOPS_PER_PARAMETER * parameters * request.tokens / (request.tflops * 1e12)
