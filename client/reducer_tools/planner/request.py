"""Makes the plan from options and, if there is one, a job's specification."""

from __future__ import annotations

from dataclasses import dataclass, field

from reducer_tools.planner import network_time
from reducer_tools.planner.cost import check_amount, check_overlap, compute_seconds
from reducer_tools.planner.lanes import Flows
from reducer_tools.planner.machines import DEFAULT_REDUCER, Machine, Machines
from reducer_tools.planner.plan import Cluster, Plan, Prices, Step, make_plan
from reducer_tools.planner.pools import Job, Pool, RatedPool, Sizing


@dataclass(frozen=True)
class Host:
    """The options for one side's machines, workers or reducers.

    ``side`` is the prefix of the options. A given rate or price overrides the machine's row in the
    table.
    """

    side: str
    gbps: float | None = None
    machine: str | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        if self.gbps is not None:
            network_time.check_positive(f"{self.side}_gbps", self.gbps)
        check_amount(f"{self.side}-price", "a price for an hour", self.price)

    def settle(self, machines: Machines, default: str | None = None) -> Machine:
        """The machine. Raises ValueError if its rate is unknown."""
        name = self.machine or default
        if name is None and self.gbps is None:
            options = f"--{self.side}-gbps, --{self.side}-machine or --spec"
            raise ValueError(f"{self.side}-gbps: expected {options}, got none")
        return machines.find(f"--{self.side}-machine", (name or self.side,), self.gbps, self.price)

    def rate(self, pool: Pool, machines: Machines) -> RatedPool:
        """A job's pool with its machine. Raises SpecError with the path if the rate is unknown."""
        return RatedPool(pool, machines.find(pool.path, pool.names, self.gbps, self.price))


@dataclass(frozen=True)
class Request:
    """The options of a plan. None means that the value is derived, or unknown.

    ``step_seconds`` is the time of a step measured over a ring, ``compute_seconds`` the time of a
    step without communication. ``flows`` is the limit of a connection.
    """

    worker: Host
    reducer: Host
    gradient_bytes: int
    workers: int | None = None
    reducers: int | None = None
    step_seconds: float | None = None
    compute_seconds: float | None = None
    overlap: float = 0.0
    flows: Flows = field(default_factory=Flows)


def answer(
    request: Request, machines: Machines, job: Job | None = None
) -> tuple[Plan, Sizing | None]:
    """Make the plan for the options, or for a job, with the sizing of the job's pools.

    Raises ValueError with field, expected and got for an invalid option, and SpecError with the
    path for an invalid field of the job.
    """
    if job is not None:
        return _answer_job(request, machines, job)
    if request.workers is None:
        raise ValueError("workers: expected --workers or --spec, got none")
    worker = request.worker.settle(machines)
    reducer = request.reducer.settle(machines)
    return _plan(request, request.workers, worker, reducer, request.reducers), None


def _answer_job(request: Request, machines: Machines, job: Job) -> tuple[Plan, Sizing]:
    """Make the plan for a job. The slowest worker's rate counts for all workers.

    If the options name a reducer machine, the plan uses it. The sizing always uses the reducers
    that the job itself names (its third worker pool).
    """
    if request.workers is not None:
        raise ValueError(f"workers: cannot be combined with --spec, got {request.workers}")
    ask = request.worker
    if ask.machine is not None:
        raise ValueError(f"worker-machine: cannot be combined with --spec, got {ask.machine!r}")
    workers = tuple(ask.rate(pool, machines) for pool in job.workers)
    is_other = request.reducer.machine is not None
    own = Host("reducer") if is_other else request.reducer
    third = own.rate(job.reducers, machines) if job.reducers else None
    sizing = Sizing(workers, third)
    count = request.reducers
    if third is None or is_other:
        reducer = request.reducer.settle(machines, DEFAULT_REDUCER)
    else:
        reducer = third.machine
        count = third.pool.replicas if count is None else count
    worker = Machine(sizing.slowest.name, sizing.slowest.gbps, sizing.worker_price)
    return _plan(request, sizing.world_size, worker, reducer, count), sizing


def _plan(
    request: Request, workers: int, worker: Machine, reducer: Machine, reducers: int | None
) -> Plan:
    ring = network_time.ring_seconds(request.gradient_bytes, workers, worker.gbps)
    prices = Prices(worker.price, reducer.price)
    hosts = (workers, worker.gbps, reducer.gbps, request.gradient_bytes)
    cluster = Cluster(*hosts, _find_step(request, ring), prices, request.flows)
    return make_plan(cluster, reducers)


def _find_step(request: Request, ring: float) -> Step:
    """The computation: given, or computed from a step that was measured over a ring."""
    step, compute, overlap = request.step_seconds, request.compute_seconds, request.overlap
    if step is None:
        if overlap and compute is None:
            raise ValueError(f"overlap: expected only with --step or --compute, got {overlap:g}")
        return Step(compute, overlap)
    if compute is not None:
        raise ValueError("step, compute: expected one of them, got both")
    check_amount("step", "seconds", step)
    check_overlap(overlap)
    return Step(compute_seconds(step, ring, overlap), overlap)
