"""The model of training over a slow link: how long the machines wait, with each method.

A *worker* is all machines of a site that share the link. Its array of gradients, or of outer
gradients, has N bytes in float32. T is the time in which the array passes the link
(`network_time.exchange_seconds`), c the computation of a step, and a round takes one RTT more than
its bytes: the last contribution travels to a reducer, and its result back.

- Data parallel: an all-reduce in each step. Backward hides its bytes, but not the RTT, since the
  last gradients are ready when backward ends. A step waits RTT + max(0, T - overlap x c).
- DiLoCo (arXiv 2311.08105): after every H steps the machines stop for T + RTT.
- Streaming DiLoCo (arXiv 2501.18512): in H steps, each of P fragments is exchanged once, while the
  machines take `delay` steps. They wait P x max(0, T / P + RTT - delay x c) in H steps. With
  P x delay <= H, no two fragments share the link.

Rates are in Gbit/s, sizes in bytes, times in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from reducer_tools.planner import cost, network_time
from reducer_tools.planner.wires import Wire

Kind = Literal["data parallel", "DiLoCo", "Streaming DiLoCo"]


@dataclass(frozen=True)
class Link:
    """The link of a worker, each way, and the reducers behind it.

    ``reducers`` is the number of dedicated reducers at ``reducer_gbps``; None means so many that
    they do not limit the workers. Then the number of workers changes no time.
    """

    gbps: float
    rtt_seconds: float = 0.0
    workers: int | None = None
    reducers: int | None = None
    reducer_gbps: float | None = None

    def __post_init__(self) -> None:
        network_time.check_positive("link", self.gbps)
        cost.check_amount("rtt", "seconds", self.rtt_seconds)
        if self.workers is not None:
            network_time.check_count("workers", self.workers, network_time.MOST_WORKERS, least=2)
        elif self.reducers is not None:
            raise ValueError(f"reducers: expected --workers, too, got only {self.reducers}")
        if self.reducer_gbps is not None and not self.reducers:
            raise ValueError(
                f"reducer-gbps: expected only with --reducers of 1 or more, got "
                f"{self.reducer_gbps:g}"
            )

    def transfer_seconds(self, gradient_bytes: int, wire: Wire) -> float:
        """The time in which an array passes the link: T."""
        sizes = (float(gradient_bytes * wire.up), float(gradient_bytes * wire.down))
        workers = self.workers or 2
        if self.reducers is None:
            return network_time.exchange_seconds(*sizes, workers, self.gbps, workers, self.gbps)
        rate = self.reducer_gbps or self.gbps
        return network_time.exchange_seconds(*sizes, workers, self.gbps, self.reducers, rate)

    @property
    def bytes_on_the_way(self) -> int:
        """What the link carries in an RTT: less in flight cannot fill it."""
        return math.ceil(self.gbps * 1e9 / 8 * self.rtt_seconds)


@dataclass(frozen=True)
class Training:
    """A training step of a worker: bytes of gradients in float32, and the computation.

    ``overlap`` is the fraction of the computation that hides the all-reduces of data parallel
    training.
    """

    gradient_bytes: int
    compute_seconds: float
    overlap: float

    def __post_init__(self) -> None:
        network_time.check_positive("gradient-bytes", self.gradient_bytes)
        network_time.check_positive("step", self.compute_seconds)
        cost.check_overlap(self.overlap)


@dataclass(frozen=True)
class Method:
    """A way to train. ``every`` is H, ``fragments`` is P, and ``delay`` is a number of steps."""

    kind: Kind
    wire: Wire
    every: int = 1
    fragments: int = 1
    delay: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a method costs. All but ``transfer_seconds`` are means over steps.

    Attributes:
        transfer_seconds: the time in which a whole array passes the link, once in H steps.
        wait_seconds: how long the machines of a worker wait.
        busy: the part of the time in which the machines compute.
        link_busy: the part of the time in which the link carries bytes.
        sent_bytes, received_bytes: what one worker sends and receives, without headers.
    """

    method: Method
    transfer_seconds: float
    wait_seconds: float
    busy: float
    link_busy: float
    sent_bytes: float
    received_bytes: float


def evaluate(method: Method, training: Training, link: Link) -> Outcome:
    """Compute what a method costs over this link."""
    transfer = link.transfer_seconds(training.gradient_bytes, method.wire)
    wait = _wait_seconds(method, training, transfer, link.rtt_seconds)
    step = training.compute_seconds + wait
    array = training.gradient_bytes / method.every
    return Outcome(
        method=method,
        transfer_seconds=transfer,
        wait_seconds=wait,
        busy=training.compute_seconds / step,
        link_busy=transfer / method.every / step,
        sent_bytes=array * float(method.wire.up),
        received_bytes=array * float(method.wire.down),
    )


def _wait_seconds(method: Method, training: Training, transfer: float, rtt: float) -> float:
    compute = training.compute_seconds
    if method.kind == "data parallel":
        return rtt + cost.step_seconds(compute, transfer, training.overlap) - compute
    one = transfer / method.fragments + rtt
    return method.fragments * max(0.0, one - method.delay * compute) / method.every
