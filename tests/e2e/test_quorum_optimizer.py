"""``QuorumOptimizer``: optimizers of torch that apply the means of the first k workers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import reducer_client
from reducer.optimizers import NoOptimizer
from reducer.wire.keys import key_id
from reducer_client.errors import MismatchError, NumericError, RoundTimeoutError, StateLostError
from reducer_client.registry.daemon import DaemonRegistry
from reducer_client.tables import KOfN, ParameterServer, means
from tests.support.cluster import Daemon
from tests.support.frameworks import needs_extra
from tests.support.ranks import run_ranks
from tests.support.reducers import Reducers
from tests.support.table_places import Places
from tests.support.wait import wait_until

pytestmark = needs_extra("torch")

if TYPE_CHECKING:
    from reducer_client.torch import QuorumOptimizer
    from tests.support.quorum_worker import Line

SECONDS = 60.0
Connect = Callable[..., ParameterServer]


@pytest.fixture
def connect(addresses: list[str], job: str) -> Iterator[Connect]:
    """Connects a worker. All are closed after the test."""
    with ExitStack() as stack:

        def find(worker: int = 0, workers: int = 2, **options: Any) -> ParameterServer:
            known: dict[str, Any] = {"job": job, "timeout": 20.0, **options}
            made = reducer_client.parameter_server(
                addresses, worker=worker, workers=workers, **known
            )
            return stack.enter_context(made)

        yield find


def check(lines: list[tuple[int, Line]]) -> None:
    """Workers at one version have the same bits, and so has a process with all their gradients."""
    from tests.support.quorum_worker import STEPS, replay

    expected = replay(lines)
    for worker, line in lines:
        assert line.print == expected[line.version], (worker, line)
    assert {worker for worker, line in lines if line.version == STEPS} == {0, 1, 2}


def test_processes_are_equal_bit_for_bit_though_one_is_slow(addresses: list[str], job: str) -> None:
    from tests.support.quorum_worker import run

    lines = [line for each in run_ranks(3, run, addresses, job) for line in each]
    check(lines)
    slow = [line for worker, line in lines if worker == 2]
    assert {line.outcome for line in slow} == {"applied", "dropped"}
    assert max(line.version - line.entered for line in slow) >= 2  # it was steps behind


def test_a_killed_reducer_takes_no_mean_with_it(tmp_path: Path, job: str) -> None:
    """Workers are threads here. The slow one, for which the others wait, waits for the kill."""
    from tests.support.quorum_worker import make, net, train

    lines: list[tuple[int, Line]] = []
    is_killed = Event()

    def program(worker: int, ps: ParameterServer) -> None:
        model = net()
        opt = make(ps, model)
        opt.start()

        def tell(line: Line) -> None:
            lines.append((worker, line))
            assert worker < 2 or is_killed.wait(SECONDS)

        train(opt, model, worker, worker == 2, tell)

    with ExitStack() as stack:
        keeper = stack.enter_context(Daemon("--registry", str(tmp_path / "registry"))).address
        reducers = stack.enter_context(Reducers(2))
        registry = DaemonRegistry(keeper, job)
        stack.callback(registry.close)
        connected = [
            stack.enter_context(
                reducer_client.parameter_server(
                    reducers.addresses, job=job, worker=worker, workers=3, replicas=1,
                    registry=keeper, timeout=SECONDS,
                )
            )
            for worker in range(3)
        ]  # fmt: skip
        places = Places(registry, job, reducers.addresses)
        pool = stack.enter_context(ThreadPoolExecutor(3))
        running = [pool.submit(program, *each) for each in enumerate(connected)]
        wait_until(lambda: any(worker == 2 for worker, _ in lines), SECONDS, "a late step")
        wait_until(places.have_backups, SECONDS, "full backups")
        reducers.kill(key_id("gradients") % 2)  # the reducer that decides the steps
        is_killed.set()
        for each in running:
            each.result(SECONDS)
    check(lines)


def test_a_table_that_keeps_too_few_means_is_refused(connect: Connect) -> None:
    ps = connect(workers=3)
    table = ps.table("t", {"w": np.zeros(3, np.float32)}, optimizer=NoOptimizer(4), mode=KOfN(2))
    with pytest.raises(ValueError, match=r"keeps 4 means.*the last 5.*NoOptimizer\(history=5\)"):
        means.Means(table, 0)
    all_of_them = KOfN(3, bound=4)
    table = ps.table("u", {"w": np.zeros(3, np.float32)}, optimizer=NoOptimizer(), mode=all_of_them)
    with pytest.raises(ValueError, match=r"the last 5"):  # a worker may be taken out, and come back
        means.Means(table, 0)


def one_weight(value: float = 0.0) -> Any:
    import torch

    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, value)
    return model


def pair(connect: Connect, **options: Any) -> list[tuple[Any, QuorumOptimizer]]:
    """Two workers train one weight with plain SGD of rate 1, and begin with worker 0's weight."""
    import torch

    from reducer_client.torch import QuorumOptimizer

    timeout = options.pop("timeout", 20.0)
    known: dict[str, Any] = {"k": 1, **options}
    workers = []
    for worker in range(2):
        model = one_weight(10.0 + worker)
        sgd = torch.optim.SGD(model.parameters(), 1.0)
        workers.append(
            (model, QuorumOptimizer(sgd, model, connect(worker, timeout=timeout), **known))
        )
    for _, opt in workers:
        opt.start()
    return workers


def step(worker: tuple[Any, QuorumOptimizer], gradient: float, **options: Any) -> str:
    import torch

    model, opt = worker
    model.weight.grad = torch.full((1, 1), gradient)
    opt.step(**options)
    assert opt.receipt is not None
    return opt.receipt.outcome


def weights(workers: list[tuple[Any, QuorumOptimizer]]) -> list[float]:
    return [model.weight.item() for model, _ in workers]


def test_a_late_gradient_is_carried_to_the_next_step(connect: Connect) -> None:
    fast, slow = workers = pair(connect, late="carry")
    assert weights(workers) == [10.0, 10.0]
    assert [step(fast, 1.0), step(fast, 2.0)] == ["applied", "applied"]
    assert step(slow, 4.0) == "carried"
    assert weights(workers) == [7.0, 7.0] and slow[1].version == 2
    assert step(slow, 8.0) == "applied"  # with the 4: a mean of two
    assert slow[0].weight.item() == 1.0


def test_means_are_weighted(connect: Connect) -> None:
    workers = pair(connect, k=2)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(
            pool.map(
                lambda each: step(workers[each], (1.0, 9.0)[each], weight=(3, 1)[each]), range(2)
            )
        )
    assert outcomes == ["applied"] * 2
    assert weights(workers) == [7.0, 7.0]
    with pytest.raises(ValueError, match="weight=0: expected an integer from 1 to"):
        step(workers[0], 1.0, weight=0)


def test_a_worker_that_ends_leaves_the_others_alone(connect: Connect) -> None:
    fast, slow = pair(connect, bound=1)
    step(fast, 1.0)
    fast[1]._ps.close()
    assert step(slow, 1.0) == "dropped"
    assert [step(slow, 1.0), step(slow, 1.0)] == ["applied"] * 2
    assert slow[1].version == 3 and slow[0].weight.item() == 7.0


def test_without_a_history_a_slow_worker_misses_means(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control of the tests above."""
    monkeypatch.setattr(means, "_history", lambda wire: 1)
    fast, slow = pair(connect)
    assert [step(fast, 1.0), step(fast, 2.0)] == ["applied", "applied"]
    with pytest.raises(
        StateLostError, match=r"does not have version 1 any more.*Load the state of"
    ):
        step(slow, 4.0)


def test_a_step_that_was_too_slow_goes_on(connect: Connect) -> None:
    workers = pair(connect, k=2, timeout=0.5)
    first, second = workers
    with pytest.raises(RoundTimeoutError, match="push 1 has no receipt"):
        step(first, 1.0)
    with pytest.raises(ValueError, match="last step was not finished"):
        first[1].state_dict()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(step, second, 3.0)
        wait_until(lambda: first[1].table.step == 1, SECONDS, "the step")
        assert step(first, 100.0) == "applied"  # this gradient is not given
        assert other.result(SECONDS) == "applied"
    assert weights(workers) == [8.0, 8.0] and first[1].counts.applied == 1


def test_other_first_parameters_are_refused_in_a_step(connect: Connect) -> None:
    from reducer_client.torch import QuorumOptimizer

    ((model, opt), _) = pair(connect)
    other = one_weight(11.0)
    sgd = type(opt.optimizer)(other.parameters(), 1.0)
    late = QuorumOptimizer(sgd, other, connect(1), k=1)
    with pytest.raises(MismatchError, match=r"call start\(\) before the first gradient"):
        step((other, late), 1.0)
    assert model.weight.item() == 10.0
    late = QuorumOptimizer(sgd, other, connect(1), k=1)  # the program is started again
    late.start()
    assert other.weight.item() == 10.0
    with pytest.raises(ValueError, match="takes part already"):
        late.start()


def adam(model: Any, ps: ParameterServer, **options: Any) -> QuorumOptimizer:
    import torch

    from reducer_client.torch import QuorumOptimizer

    inner = torch.optim.Adam(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(inner, 0.9)
    return QuorumOptimizer(inner, model, ps, k=1, scheduler=schedule, **options)


def steps(worker: tuple[Any, QuorumOptimizer], *gradients: float) -> None:
    for gradient in gradients:
        assert step(worker, gradient) == "applied"


def saved(worker: tuple[Any, QuorumOptimizer]) -> Any:
    """What a program saves: the states of the model and of the optimizer."""
    return pickle.dumps([worker[0].state_dict(), worker[1].state_dict()])


def loaded(state: Any, ps: ParameterServer, **options: Any) -> tuple[Any, QuorumOptimizer]:
    model = one_weight()
    opt = adam(model, ps, **options)
    for each, part in zip((model, opt), pickle.loads(state), strict=True):
        each.load_state_dict(part)
    return model, opt


def test_a_run_goes_on_from_a_state(connect: Connect, job: str) -> None:
    model = one_weight(1.0)
    whole = model, adam(model, connect(0, 1))
    steps(whole, 1.0, -2.0)
    state = saved(whole)
    steps(whole, 3.0, 4.0)
    first, second = [loaded(state, connect(worker, 2, job=f"{job}-2")) for worker in range(2)]
    assert first[1].version == 2
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: each[1].start(), (first, second)))
    steps(first, 3.0)
    assert step(second, 5.0) == "dropped"
    steps(second, 4.0)
    assert step(first, 5.0) == "dropped"
    assert first[1].version == second[1].version == 4
    assert weights([first, second]) == [whole[0].weight.item()] * 2
    assert first[1].param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**4)


def test_a_worker_comes_back_with_the_state_of_another(connect: Connect) -> None:
    workers = []
    for worker in range(2):
        model = one_weight(1.0)
        workers.append((model, adam(model, connect(worker), bound=2)))
        workers[-1][1].start()
    first, lost = workers
    old = saved(first)
    steps(first, 1.0)
    state = saved(first)
    steps(first, 2.0)
    lost[1]._ps.close()
    steps(first, 3.0)
    again = loaded(state, connect(1), bound=2)
    again[1].start()
    assert weights([first, again]) == [first[0].weight.item()] * 2 and again[1].version == 3
    steps(first, 4.0, 5.0)  # while it computes its first gradient
    assert step(again, 6.0) == "dropped"
    assert weights([first, again]) == [first[0].weight.item()] * 2 and again[1].version == 5
    again[1]._ps.close()
    with pytest.raises(StateLostError, match="Load the state of a worker that goes on"):
        loaded(old, connect(1), bound=2)[1].start()


def test_a_step_of_all_workers_goes_on_without_one_that_comes_back(connect: Connect) -> None:
    from reducer_client.torch import QuorumOptimizer

    first, second = pair(connect, k=2)
    second[1]._ps.close()
    steps(first, 1.0, 2.0)
    model = one_weight(3.0)
    sgd = type(first[1].optimizer)(model.parameters(), 1.0)
    again = QuorumOptimizer(sgd, model, connect(1), k=2)
    again.start()
    assert again.version == 2 and model.weight.item() == first[0].weight.item() == 7.0


def test_a_worker_without_the_checkpoint_of_the_others_is_refused(
    connect: Connect, job: str
) -> None:
    model = one_weight(1.0)
    whole = model, adam(model, connect(0, 1))
    steps(whole, 1.0, -2.0)
    with ThreadPoolExecutor(1) as pool:
        first = loaded(saved(whole), connect(0, job=f"{job}-2"))
        running = pool.submit(first[1].start)
        forgot = one_weight(5.0)
        with pytest.raises(StateLostError, match=r"has no version 0.*load one checkpoint"):
            adam(forgot, connect(1, job=f"{job}-2")).start()
        running.result(SECONDS)
    assert forgot.weight.item() == 5.0
    for version in (0, 1):
        with pytest.raises(StateLostError, match="before the version with which a table begins"):
            first[1].table.pull_version(version)
    wrong: list[tuple[Any, type[Exception]]] = [
        (-1, ValueError),
        (True, TypeError),
        (1.0, TypeError),
    ]
    for version, kind in wrong:
        with pytest.raises(kind, match=f"version={version}.*expected an int"):
            first[1].table.pull_version(version)
    assert first[1].table.pull_version(2)


@pytest.mark.parametrize("weight", [1, 0])
def test_a_refused_gradient_leaves_the_state_as_it_is(connect: Connect, weight: int) -> None:
    first, _ = pair(connect)
    steps(first, 2.0)
    state = first[1].state_dict()
    refused = ValueError if weight == 0 else NumericError
    with pytest.raises(refused):
        step(first, float("nan"), weight=weight)
    assert first[1].state_dict() == state
    steps(first, 3.0)
    assert first[1].state_dict()["last_mean"] != state["last_mean"]


def test_states_that_differ_are_refused(connect: Connect, job: str) -> None:
    states = []
    for number in range(2):
        model = one_weight(1.0)
        worker = model, adam(model, connect(0, 1, job=f"{job}-{number}"))
        steps(worker, *[1.0 + number] * (1 + number))
        states.append(saved(worker))
    with ThreadPoolExecutor(1) as pool:
        begun = loaded(states[0], connect(0))
        running = pool.submit(begun[1].start)
        with pytest.raises(MismatchError, match="has applied 2 means, and the table has 1"):
            loaded(states[1], connect(1))[1].start()
        other = loaded(states[0], connect(1))
        other[0].weight.data += 1.0
        other[1]._start = 1, "of another run"
        with pytest.raises(MismatchError, match="other parameters at version 1"):
            other[1].start()
        running.result(SECONDS)
    with pytest.raises(ValueError, match="expected the state of a QuorumOptimizer"):
        loaded(states[0], connect(0, 1, job=f"{job}-3"))[1].load_state_dict({"state": {}})


def test_means_that_are_lost_with_their_reducers(job: str) -> None:
    with (
        Reducers(1) as reducers,
        reducer_client.parameter_server(
            reducers.addresses, job=job, worker=0, workers=1, timeout=SECONDS
        ) as ps,
    ):
        model = one_weight()
        worker = model, adam(model, ps)
        steps(worker, 1.0)
        reducers.kill(0)
        reducers.start(0)
        with pytest.raises(StateLostError, match="load one checkpoint of the model and of its opt"):
            steps(worker, *[1.0] * 100)


def test_parameters_of_16_bits(connect: Connect) -> None:
    import torch

    models = [one_weight(1.0 + worker).bfloat16() for worker in range(2)]
    workers = [(model, adam(model, connect(each))) for each, model in enumerate(models)]
    for _, opt in workers:
        opt.start()
    first, second = workers
    for gradient in (0.3, 1e-3):
        model, opt = first
        model.weight.grad = torch.full((1, 1), gradient, dtype=torch.bfloat16)
        opt.step()
    second[0].weight.grad = torch.zeros(1, 1, dtype=torch.bfloat16)
    second[1].step()
    assert torch.equal(models[0].weight, models[1].weight)
    assert models[0].weight.item() not in (1.0, 2.0)


def test_what_does_not_fit_is_refused(connect: Connect) -> None:
    import torch
    from torch import nn

    from reducer_client.torch import QuorumOptimizer

    ps, model = connect(0, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
    others = torch.optim.SGD(one_weight().parameters(), 0.1)
    step_lr = torch.optim.lr_scheduler.StepLR(others, 1)
    names = list(model.named_parameters())
    lbfgs = torch.optim.LBFGS(model.parameters())
    refused: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "a bound of at most 7", lambda: QuorumOptimizer(sgd, model, ps, 1, bound=8)),
        (ValueError, "above the number of workers", lambda: QuorumOptimizer(sgd, model, ps, 3)),
        (TypeError, "expected a torch.optim", lambda: QuorumOptimizer(model, model, ps, 1)),  # type: ignore[arg-type]
        (TypeError, "LBFGS", lambda: QuorumOptimizer(lbfgs, model, ps, 1)),
        (ValueError, "lacks 4 of the", lambda: QuorumOptimizer(others, model, ps, 1)),
        (ValueError, "2 of its parameters", lambda: QuorumOptimizer(sgd, names[:2], ps, 1)),
        (ValueError, "comes twice", lambda: QuorumOptimizer(sgd, [*names, names[0]], ps, 1)),
        (TypeError, "an iterable with", lambda: QuorumOptimizer(sgd, model.parameters(), ps, 1)),  # type: ignore[arg-type]
        (TypeError, "LRSch", lambda: QuorumOptimizer(sgd, model, ps, 1, scheduler=plateau)),
        (ValueError, "another", lambda: QuorumOptimizer(sgd, model, ps, 1, scheduler=step_lr)),
    ]
    for kind, text, make in refused:
        with pytest.raises(kind, match=text):
            make()
    opt = QuorumOptimizer(sgd, iter(names), ps, 1)
    with pytest.raises(ValueError, match="none before start"):
        _ = opt.table
    with pytest.raises(ValueError, match="has no gradient"):
        opt.step()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    with pytest.raises(NumericError, match=r"0\.weight"):
        opt.step()
    model[0].weight.grad = torch.zeros(2, 2).to_sparse()
    with pytest.raises(TypeError, match="sparse gradient"):
        opt.step()
    assert opt.version == 0 and opt.receipt is None
