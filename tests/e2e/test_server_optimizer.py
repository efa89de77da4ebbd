"""``ServerOptimizer``: torch models whose parameters are in a table, over real reducers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import reducer_client
from reducer.optimizers import SGD, Adagrad, Adam, AdamW, NoOptimizer, Optimizer
from reducer_client.errors import NumericError
from reducer_client.tables import SSP, KOfN, ParameterServer
from tests.support.frameworks import needs_extra
from tests.support.wait import wait_until

pytestmark = needs_extra("torch")

if TYPE_CHECKING:
    import torch
    from torch import nn

    from reducer_client.torch import ServerOptimizer

Connect = Callable[..., ParameterServer]


@pytest.fixture
def connect(addresses: list[str], job: str) -> Iterator[Connect]:
    """Connects a worker once. It is closed after the test."""
    joined: dict[int, ParameterServer] = {}
    with ExitStack() as stack:

        def find(worker: int = 0, workers: int = 1) -> ParameterServer:
            if worker not in joined:
                joined[worker] = stack.enter_context(
                    reducer_client.parameter_server(
                        addresses, job=job, worker=worker, workers=workers, timeout=20.0
                    )
                )
            return joined[worker]

        yield find


def net(seed: int = 0) -> nn.Sequential:
    import torch
    from torch import nn

    torch.set_num_threads(1)  # threads of OpenMP spin, which a busy machine pays for
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 60), nn.Tanh(), nn.Linear(60, 5))


def batches(seed: int, count: int, size: int = 16) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        images = torch.randn(size, 20, generator=generator)
        yield images, torch.randint(0, 5, (size,), generator=generator)


def backward(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import cross_entropy

    model.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    return loss.detach()


def flat(model: nn.Module) -> np.ndarray[Any, Any]:
    import torch

    parts = [p.detach().float().reshape(-1) for p in model.parameters()]
    return np.asarray(torch.cat(parts).numpy())


def make(connect: Connect, model: nn.Module, optimizer: Optimizer, **options: Any) -> Any:
    from reducer_client.torch import ServerOptimizer

    worker, workers = options.pop("worker", 0), options.pop("workers", 1)
    ps = connect(worker, workers)
    return ServerOptimizer.create(model, ps, optimizer=optimizer, **options)


def same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> None:
    assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max()


PAIRS: dict[str, tuple[Optimizer, Callable[[Any], Any]]] = {
    "sgd": (
        SGD(0.2, convention="torch", momentum=0.9, nesterov=True, weight_decay=1e-3),
        lambda torch: (
            torch.optim.SGD,
            {"lr": 0.2, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
        ),
    ),
    "adagrad": (
        Adagrad(0.05, convention="torch", lr_decay=0.01),
        lambda torch: (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.01}),
    ),
    "adam": (Adam(0.01, convention="torch"), lambda torch: (torch.optim.Adam, {"lr": 0.01})),
    "adamw": (AdamW(0.01, convention="torch"), lambda torch: (torch.optim.AdamW, {"lr": 0.01})),
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_worker_is_torchs_optimizer_with_its_schedule(connect: Connect, name: str) -> None:
    import torch

    optimizer, theirs = PAIRS[name]
    kind, options = theirs(torch)
    models = [net(), net()]
    ours = make(connect, models[0], optimizer, mode="sync")
    both = [ours, kind(models[1].parameters(), **options)]
    schedules = [torch.optim.lr_scheduler.StepLR(each, 10, 0.5) for each in both]
    for images, labels in batches(1, 50):
        losses = [
            each.step(lambda model=model: backward(model, images, labels))  # noqa: B023
            for each, model in zip(both, models, strict=True)
        ]
        assert abs(losses[0] - losses[1]) < 1e-4
        for schedule in schedules:
            schedule.step()
    same(flat(models[0]), flat(models[1]))
    assert ours.table.lr == options["lr"] / 16  # the last change is told with the next push
    assert ours.counts.applied == 50 and ours.receipt.version == 50


def _train_half(opt: ServerOptimizer, model: nn.Module, half: int) -> None:
    for images, labels in batches(2, 20):
        mine = slice(8 * half, 8 * half + 8)
        backward(model, images[mine], labels[mine])
        opt.step()


def test_two_workers_in_common_steps_are_one_on_whole_batches(connect: Connect) -> None:
    import torch

    models = [net(0), net(7)]  # worker 1 takes over the values of worker 0
    with ThreadPoolExecutor(2) as pool:
        made = list(
            pool.map(
                lambda worker: make(
                    connect, models[worker], Adam(0.01, convention="torch"), mode="sync",
                    worker=worker, workers=2,
                ),
                range(2),
            )
        )  # fmt: skip
        list(pool.map(_train_half, made, models, range(2)))
    alone = net(0)
    optimizer = torch.optim.Adam(alone.parameters(), 0.01)
    for images, labels in batches(2, 20):
        backward(alone, images, labels)
        optimizer.step()
    assert np.array_equal(flat(models[0]), flat(models[1]))
    assert np.abs(flat(models[0]) - flat(alone)).max() <= 1e-4 * np.abs(flat(alone)).max()


@pytest.mark.parametrize(("late", "outcome"), [("drop", "dropped"), ("carry", "carried")])
def test_a_late_worker_goes_on_from_the_newest_step(
    connect: Connect, late: Any, outcome: str
) -> None:
    mode = KOfN(1, late=late, bound=100)
    models = [net(), net()]
    first, last = (
        make(connect, model, SGD(0.1, convention="torch"), mode=mode, worker=number, workers=2)
        for number, model in enumerate(models)
    )
    (images, labels), *more = batches(3, 4)
    backward(models[1], images, labels)
    for pair in more:
        backward(models[0], *pair)
        first.step()
    last.step()
    assert last.receipt.outcome == outcome
    assert np.array_equal(flat(models[0]), flat(models[1]))
    carried = {n: p.grad.clone() for n, p in models[1].named_parameters()}
    before = flat(models[1])
    backward(models[1], *more[0])
    last.step()
    assert (last.receipt.outcome, last.receipt.weight) == ("applied", 1 + (late == "carry"))
    expected = [
        (p.grad + carried[n]) / 2 if late == "carry" else p.grad
        for n, p in models[1].named_parameters()
    ]
    gone = np.concatenate([gradient.numpy().reshape(-1) for gradient in expected])
    same(flat(models[1]), before - np.float32(0.1) * gone)


def test_without_waiting_a_gradient_keeps_the_version_it_was_computed_from(
    connect: Connect,
) -> None:
    models = [net(), net()]
    ahead, other = (
        make(connect, model, SGD(0.01, convention="torch"), worker=number, workers=2)
        for number, model in enumerate(models)
    )
    pairs = list(batches(4, 6))
    backward(models[0], *pairs[0])
    ahead.step(wait=False)
    wait_until(lambda: min(ahead.table.base) == 1, 10)  # pulled, but not in the model
    backward(models[0], *pairs[1])
    for pair in pairs[2:5]:
        backward(models[1], *pair)
        other.step()
    ahead.step(wait=False)
    wait_until(lambda: ahead.counts.applied == 2, 10)
    ahead.pull()
    assert ahead.receipt.staleness == 4  # its own first push and three of the other worker
    other.pull()
    assert np.array_equal(flat(models[0]), flat(models[1]))
    for pair in batches(4, 100):
        backward(models[0], *pair)
        ahead.step(wait=False)
    ahead.pull()
    assert ahead.counts.applied == 102 and ahead.table.version == 105


def test_each_step_of_ssp_ends_a_clock(connect: Connect) -> None:
    models = [net(), net()]
    fast, slow = (
        make(connect, model, SGD(0.1, convention="torch"), mode=SSP(1), worker=n, workers=2)
        for n, model in enumerate(models)
    )
    pairs = list(batches(5, 2))
    backward(models[0], *pairs[0])
    fast.step()
    backward(models[0], *pairs[1])
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(fast.step)
        backward(models[1], *pairs[0])
        with pytest.raises(TimeoutError):
            second.result(0.5)
        slow.step()
        second.result(20)


def test_a_scaler_skips_what_overflows(connect: Connect) -> None:
    import torch

    models = [net(), net()]
    ours = make(connect, models[0], SGD(0.1, convention="torch"))
    both = [ours, torch.optim.SGD(models[1].parameters(), 0.1)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**127) for _ in both]
    for images, labels in batches(6, 8):
        for model, optimizer, scaler in zip(models, both, scalers, strict=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            scaler.scale(100 * loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert ours.skipped >= 1 and ours.counts.applied == 8 - ours.skipped
    same(flat(models[0]), flat(models[1]))


def test_16_bit_parameters_have_their_masters_in_the_table(connect: Connect) -> None:
    import torch

    model = net().to(torch.bfloat16)
    first = flat(model)
    ours = make(connect, model, SGD(1e-4, convention="torch"))
    for images, labels in batches(7, 20):
        backward(model, images.bfloat16(), labels)
        ours.step()
    master = np.concatenate([array.reshape(-1) for array in ours.table.pull().values()])
    assert np.count_nonzero(master != first) > 0.9 * first.size  # also what is below a bfloat16
    rounded = torch.from_numpy(master).bfloat16().float().numpy()
    assert np.array_equal(flat(model), rounded)


def test_a_state_goes_on_with_the_schedule(connect: Connect) -> None:
    import torch

    model = net()
    ours = make(connect, model, SGD(0.1, convention="torch"))
    pair = next(batches(8, 1))
    for rate in (0.05, 0.02):
        ours.param_groups[0]["lr"] = rate
        backward(model, *pair)
        ours.step()
    state = ours.state_dict()
    again = make(connect, net(), SGD(0.1, convention="torch"), name="again")
    again.load_state_dict(state)
    assert again.table.lr == again.param_groups[0]["lr"] == 0.02
    torch.optim.lr_scheduler.LambdaLR(again, lambda step: 0.5)
    assert again.param_groups[0]["lr"] == 0.01
    before = ours.table._state.rate_number
    ours.load_state_dict(state)  # the reducers know this change
    backward(model, *pair)
    ours.step()
    assert ours.table._state.rate_number == before == 2


def _refusals(ours: ServerOptimizer, model: nn.Module) -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch

    pair = next(batches(9, 1))
    yield "'0.weight' has no gradient", ours.step
    backward(model, *pair)
    yield "of a table are fixed", lambda: ours.add_param_group({"params": []})
    yield (
        "2 parameter groups",
        lambda: ours.load_state_dict(
            {**ours.state_dict(), "param_groups": ours.state_dict()["param_groups"] * 2}
        ),
    )
    other = torch.optim.SGD(model.parameters(), 0.1).state_dict()
    yield "of another optimizer", lambda: ours.load_state_dict(other)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    yield "GradScaler", lambda: scaler.step(ours)
    yield "needs the mode async", lambda: ours.step(wait=False)


def test_what_is_refused_in_common_steps(connect: Connect) -> None:
    model = net()
    ours = make(connect, model, SGD(0.1, convention="torch"), mode="sync")
    for text, call in _refusals(ours, model):
        with pytest.raises(ValueError, match=text):
            call()
    next(model.parameters()).grad.fill_(float("nan"))  # type: ignore[union-attr]
    with pytest.raises(NumericError, match=r"0\.weight"):
        ours.step()
    assert ours.counts.refused == 1


def test_models_and_tables_that_do_not_fit(connect: Connect) -> None:
    import torch
    from torch import nn

    from reducer_client.torch import ServerOptimizer

    ps = connect()
    sgd = SGD(0.1, convention="torch")
    table = ps.table("one", {"0.weight": np.zeros((4, 3), np.float32)}, optimizer=sgd)
    with pytest.raises(ValueError, match=r"'0.weight': \(60, 20\) in the model, \(4, 3\) in the"):
        ServerOptimizer(net(), table)
    with pytest.raises(TypeError, match=r"0\.weight': expected float32"):
        make(connect, net().double(), sgd)
    with pytest.raises(TypeError, match="has no shape yet"):
        make(connect, nn.LazyLinear(3), sgd)
    with pytest.raises(ValueError, match="no parameter"):
        make(connect, net().requires_grad_(False), sgd)
    with pytest.raises(ValueError, match="no optimizer"):
        make(connect, net(), NoOptimizer(), name="means")
    embedding = nn.Embedding(10, 4, sparse=True)
    ours = make(connect, embedding, sgd, name="rows")
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="'weight' has a sparse gradient"):
        ours.step()


def test_momentum_without_common_steps_is_warned_of(connect: Connect) -> None:
    with pytest.warns(UserWarning, match="Divide the learning rate by the number of workers"):
        make(connect, net(), SGD(0.1, convention="torch", momentum=0.9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(connect, net(), Adagrad(0.1, convention="tf"), name="adagrad")
