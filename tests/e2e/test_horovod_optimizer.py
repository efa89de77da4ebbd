"""DistributedOptimizer on two ranks trains as one process on the whole batch."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch import nn

import reducer_client.horovod as hvd
from reducer_client.horovod.torch.gradients import Gradients
from tests.support.digits import BATCH, STEPS, share, together
from tests.support.frameworks import needs_extra
from tests.support.horovod import as_tensors, be_horovod, make_model, values
from tests.support.ranks import run_ranks

pytestmark = needs_extra("sklearn")

WORLD = 2
Options = dict[str, Any]
Make = Callable[[nn.Module], torch.optim.Optimizer]


def _sgd(model: nn.Module, lr: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def _lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters(), max_iter=3)


def _last_layer_first(model: nn.Module) -> list[list[torch.Tensor]]:
    parameters = list(model.parameters())
    return [parameters[2:], parameters[:1]]


# Options of DistributedOptimizer; functions are called with the model.
TRAININGS: dict[str, tuple[Make, Options]] = {
    "sgd": (_sgd, {}),
    "adamw": (_adam, {}),
    "sum": (lambda model: _sgd(model, lr=0.25), {"op": hvd.Sum}),
    "numbered": (_sgd, {"named_parameters": lambda model: None}),
    "two groups": (_sgd, {"groups": 2}),
    "lists": (_sgd, {"groups": _last_layer_first}),
    "predivide": (_sgd, {"gradient_predivide_factor": 2.0}),
    "two passes": (_sgd, {"backward_passes_per_step": 2}),
    "fp16": (_sgd, {"compression": hvd.Compression.fp16}),
    "bf16": (_sgd, {"compression": hvd.Compression.bf16}),
    "int8": (_sgd, {"compression": hvd.Compression.int8, "groups": 2}),
    "closure": (_lbfgs, {}),
}
LOOSE = {"fp16": 2e-3, "bf16": 2e-2, "int8": 5e-2}


def _wrap(optimizer: torch.optim.Optimizer, model: nn.Module, **options: Any) -> Any:
    options.setdefault("named_parameters", lambda model: model.named_parameters())
    given = {name: v(model) if type(v) is type(_wrap) else v for name, v in options.items()}
    return hvd.DistributedOptimizer(optimizer, **given)


def _train(
    model: nn.Module, optimizer: Any, samples: tuple[Any, Any], batch: int, passes: int = 1
) -> list[np.ndarray[Any, Any]]:
    images, labels = (part.split(batch) for part in as_tensors(samples))
    for step in range(0, STEPS, passes):

        def closure(part: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[part]), labels[part])
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
            continue
        optimizer.zero_grad()
        for part in range(step, step + passes):
            loss = nn.functional.cross_entropy(model(images[part]), labels[part])
            (loss / passes).backward()
        optimizer.step()
    return values(model)


def _every_training(
    rank: int, world: int, addresses: list[str], job: str
) -> dict[str, list[np.ndarray[Any, Any]]]:
    be_horovod(rank, world, addresses, job)
    hvd.init()
    trained = {}
    for name, (make, options) in TRAININGS.items():
        model = make_model(seed=rank)  # differs unless it is broadcast
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = _wrap(make(model), model, **options)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        optimizer.zero_grad()
        assert isinstance(optimizer, type(make(model)))
        passes = optimizer.backward_passes_per_step
        trained[name] = _train(model, optimizer, share(rank, world), BATCH, passes)
    hvd.shutdown()
    return trained


@pytest.mark.timeout(150)
def test_two_ranks_train_as_one_process_on_the_whole_batch(addresses: list[str], job: str) -> None:
    first, second = run_ranks(WORLD, _every_training, addresses, job)
    for name, (make, options) in TRAININGS.items():
        for ours, theirs in zip(first[name], second[name], strict=True):
            assert ours.tobytes() == theirs.tobytes(), name
        model = make_model(seed=0)
        if name == "sum":
            make = _sgd
        passes = options.get("backward_passes_per_step", 1)
        alone = _train(model, make(model), together(WORLD), WORLD * BATCH, passes)
        for ours, one in zip(first[name], alone, strict=True):
            np.testing.assert_allclose(ours, one, rtol=0, atol=LOOSE.get(name, 1e-9), err_msg=name)
    # Only compression may change bits.
    same = ("numbered", "two groups", "lists", "predivide")
    assert all(_bytes(first[name]) == _bytes(first["sgd"]) for name in same)
    assert all(_bytes(first[name]) != _bytes(first["sgd"]) for name in LOOSE)


def _bytes(arrays: list[np.ndarray[Any, Any]]) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


def _behaviour(rank: int, world: int, addresses: list[str], job: str) -> None:
    be_horovod(rank, world, addresses, job)
    hvd.init()
    for case in BEHAVIOUR:
        case(rank, world)
    hvd.shutdown()


def test_behaviour_of_two_ranks(addresses: list[str], job: str) -> None:
    run_ranks(WORLD, _behaviour, addresses, job)


def _net(**options: Any) -> tuple[nn.Linear, Any]:
    """One weight and one bias, equal on all ranks."""
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return model, hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), **options
    )


def _backward(model: nn.Linear, slope: float) -> None:
    """Backward with gradient `slope` for the weight and 1 for the bias."""
    model(torch.full((1, 1), slope)).sum().backward()


def test_arguments_that_do_not_fit_are_refused_before_init() -> None:
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    plain = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    named = [*first.named_parameters(), *second.named_parameters()]
    wrong: list[tuple[Options, str]] = [
        ({"named_parameters": named}, r"more than once: \['weight', 'bias'\]"),
        ({"named_parameters": named[:2]}, r"no name for parameters of shapes \[\(1, 1\), \(1,\)\]"),
        ({"named_parameters": [p for _, p in named]}, "expected pairs"),
        ({"backward_passes_per_step": 0}, "expected 1 or more"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "expected op Average"),
        ({"groups": 0}, "groups=0"),
        (
            {"groups": [[named[0][1]], [named[0][1]]]},
            r"a parameter of shape \(1, 1\) is listed more than once",
        ),
        ({"groups": [["weight"]]}, "lists of tensors"),
    ]
    for options, text in wrong:
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(plain, **options)
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.DistributedOptimizer(plain, op=hvd.Adasum)
    with pytest.raises(hvd.HorovodInternalError, match="call init"):
        hvd.DistributedOptimizer(plain, named[:2] + [(f"other.{n}", p) for n, p in named[2:]])


def _what_is_distributed_and_how_it_is_numbered(rank: int, world: int) -> None:
    plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(1)) for _ in range(4)], lr=0.1)
    distributed, other = hvd.DistributedOptimizer(plain), hvd.DistributedOptimizer(plain)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(distributed)
    with pytest.warns(DeprecationWarning, match="groups"):
        hvd.DistributedOptimizer(plain, num_groups=2)
    names = hvd.allgather_object(sorted(distributed._parameter_names.values()))
    assert names == [[f"optimizer.0.0.{i}" for i in range(4)]] * world
    assert sorted(other._parameter_names.values()) == [f"optimizer.1.0.{i}" for i in range(4)]


def _a_step_through_two_optimizers(rank: int, world: int) -> None:
    models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    optimizers = []
    for model in models:
        nn.init.ones_(model.weight)
        optimizers.append(hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5)))
    models[1](models[0](torch.ones(1, 1))).sum().backward()
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.step()
        assert model.weight.item() == 0.5


def _misuse_of_a_step(rank: int, world: int) -> None:
    model, optimizer = _net()
    _backward(model, 1.0)
    with pytest.raises(AssertionError, match="before step"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match=r"2 backward passes before step\(\), expected 1"):
        _backward(model, 1.0)
    with pytest.raises(ValueError, match="after step"):
        optimizer.set_backward_passes_per_step(2)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    _backward(model, 1.0)
    _backward(model, 2.0)
    optimizer.synchronize()
    assert model.weight.grad is not None and model.weight.grad.item() == 3.0


def _a_step_that_failed_is_forgotten(rank: int, world: int) -> None:
    model = nn.Linear(1 + rank, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 1 + rank)).sum().backward()
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            optimizer.step()


def _clipping(rank: int, world: int) -> None:
    model, optimizer = _net()
    _backward(model, 2.0 + 4.0 * rank)
    optimizer.synchronize()
    assert model.weight.grad is not None and model.weight.grad.item() == 4.0
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    with optimizer.skip_synchronize(), warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert model.weight.item() == 0.5
    _backward(model, 1.0)
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="step.. called without optimizer.skip_synchronize"):
        optimizer.step()
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _backward(model, 1.0)
        optimizer.step()


def _a_sum_is_not_summed_twice(rank: int, world: int) -> None:
    model, optimizer = _net(op=hvd.Sum)
    _backward(model, 1.0)
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()
    assert model.weight.item() == 0.0


def _a_gradient_that_only_one_rank_has(rank: int, world: int) -> None:
    for options in ({}, {"groups": 1}):
        model, optimizer = _net(**options)
        output = torch.full((1, 1), 4.0) @ model.weight if rank == 0 else model.bias
        output.sum().backward()
        optimizer.step()
        assert (model.weight.item(), model.bias.item()) == (0.0, -0.25), options


def _parameters_that_freeze_and_thaw(rank: int, world: int) -> None:
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight)
    model.weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([model.weight], lr=0.5))
    _backward(model, float(rank))
    optimizer.step()
    assert model.weight.grad is None and model.weight.item() == 1.0
    for expected in (0.75, 0.5):
        model.weight.requires_grad_(True)
        optimizer.zero_grad()
        _backward(model, float(rank))
        hooked = pytest.raises(AssertionError, match="before step")
        with hooked if expected == 0.5 else nullcontext():
            optimizer.zero_grad(set_to_none=False)
            _backward(model, float(rank))  # no hook yet, but reduced
        optimizer.step()
        assert model.weight.item() == expected
    model.weight.requires_grad_(False)
    optimizer.zero_grad()
    _backward(model, 1.0)
    optimizer.step()
    assert model.weight.grad is None and model.weight.item() == 0.5


def _a_closure_that_only_one_rank_learns_by(rank: int, world: int) -> None:
    """Gradients are summed once, also for a parameter that has just thawed and has no hook."""
    model, optimizer = _net(op=hvd.Sum)
    model.weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([model.weight], lr=0.5), op=hvd.Sum)
    model.weight.requires_grad_(True)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        reached = model.weight if rank == 0 else torch.ones(1, requires_grad=True)
        (loss := reached.sum()).backward()
        return loss

    for expected in (0.5, 0.0):
        optimizer.step(closure)
        assert model.weight.item() == expected
    optimizer.zero_grad()
    _backward(model, 1.0)
    optimizer.step(lambda: torch.zeros(1))
    assert model.weight.item() == -1.0


def _gradients_of_a_step_that_is_gone_back_from(rank: int, world: int) -> None:
    model, optimizer = _net()
    state = hvd.elastic.TorchState(model, optimizer)
    for go_back in (state.restore, state.on_reset):
        _backward(model, 4.0)
        optimizer.synchronize()
        go_back()
        assert model.weight.grad is None and model.bias.grad is None
        _backward(model, 4.0)
        hvd.barrier()  # then all gradients have arrived
        go_back()
        assert model.weight.grad is None and model.bias.grad is None
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _backward(model, 1.0)
            optimizer.step()
        assert model.weight.item() == 0.5
        optimizer.zero_grad()
        state.restore()


def _parameters_that_come_later(rank: int, world: int) -> None:
    model, optimizer = _net()
    later = nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [later]})
    (model(torch.ones(1, 1)) * later * (1.0 + rank)).sum().backward()
    optimizer.step()
    assert later.item() == 0.25


def _what_sits_on_an_optimizer(rank: int, world: int) -> None:
    model, optimizer = _net()
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.weight.grad.item()))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.full((1, 1), 1.0 + 2.0 * rank)).sum()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.25 / (1 + step)
    assert seen == [2.0, 2.0]  # once a step, the averaged gradient
    assert model.weight.item() == 1.0 - 0.5 * 2 - 0.25 * 2
    saved = copy.deepcopy(optimizer.state_dict())
    model, optimizer = _net()
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.weight.grad.item()))
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.125
    _backward(model, 3.0 + 2.0 * rank)
    optimizer.step()
    assert seen == [2.0, 2.0, 4.0]
    plain = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(plain)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    with pytest.warns(UserWarning, match="before .optimizer.step"):  # of the plain optimizer
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def _an_optimizer_that_is_gone_sends_nothing(rank: int, world: int) -> None:
    model, optimizer = _net()
    del optimizer
    gc.collect()
    if rank == 0:
        _backward(model, 1.0)  # a hook would wait for rank 1 for ever
        model.zero_grad()
    plain = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    plain.state[model.weight]["momentum_buffer"] = torch.ones(1, 1)
    plain.register_step_pre_hook(lambda *_: None)
    again = hvd.DistributedOptimizer(plain)
    _backward(model, 2.0 * rank)
    again.step()
    assert again.state is plain.state and model.weight.item() == 1 - 0.5 * (0.5 + 1)


def _sparse_gradients(rank: int, world: int) -> None:
    rows = [torch.tensor([[1, 2, 4], [4, 3, 2]]), torch.tensor([[1, 3], [4, 0]])]
    expected = torch.zeros(5, 3)
    for mine in rows:
        expected.index_add_(0, mine.flatten(), torch.ones(mine.numel(), 3) / world)
    for options in ({}, {"sparse_as_dense": True}, {"op": hvd.Sum}):
        model = nn.Embedding(5, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, **options)
        hvd.broadcast_optimizer_state(optimizer, 0)
        model(rows[rank]).sum().backward()
        optimizer.step()
        grad = model.weight.grad
        assert grad is not None and grad.is_sparse
        factor = world if "op" in options else 1
        torch.testing.assert_close(grad.to_dense(), expected * factor)
    model = nn.Embedding(5, 3, sparse=True)
    hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters()), 0, nn.Sequential(model))
    assert model.weight.grad is None
    with pytest.raises(ValueError, match="Average or Sum"):
        hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "x", hvd.Max)
    mine = torch.ones(2, 2 + rank).to_sparse()
    finish = hvd.sparse_allreduce_async(mine, "shapes", hvd.Sum)
    with pytest.raises(hvd.HorovodInternalError, match=r"got \(2, 2\) .* on rank 0, \(2, 3\)"):
        finish()


def _an_embedding_that_one_rank_does_not_use(rank: int, world: int) -> None:
    """In the first step or in later ones."""
    for used_by in ([[0], [1], [0, 1], []], [[], [1]], [[0, 1], [0]]):
        model = nn.Embedding(4, 2, sparse=True)
        nn.init.zeros_(model.weight)
        other = nn.Linear(1, 1)
        optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer)
        expected = torch.zeros(4, 2)
        for step, users in enumerate(used_by):
            optimizer.zero_grad()
            loss = other(torch.ones(1, 1)).sum()
            if rank in users:
                loss = loss + model(torch.tensor([step, rank])).sum()
            for user in users:
                expected[step] -= 1 / world
                expected[user] -= 1 / world
            loss.backward()
            optimizer.step()
            assert model.weight.grad is not None
            assert model.weight.grad.is_sparse or not used_by[0]
            torch.testing.assert_close(model.weight.detach(), expected)


def _who_had_no_step_before_a_join(rank: int, world: int) -> None:
    model, optimizer = _net()
    for epoch in range(2):
        if rank == 0 or epoch:
            optimizer.zero_grad()
            _backward(model, 1.0)
            optimizer.step()
        hvd.join()
    assert model.weight.item() == (0.5 if rank else 0.25)


def _a_gradient_of_two_layouts(rank: int, world: int) -> None:
    model = nn.Embedding(4, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    loss = model(torch.tensor([1])).sum() if rank else model.weight.sum()
    loss.backward()
    with pytest.raises(hvd.HorovodInternalError, match="dense on 1 and sparse on 1 of the ranks"):
        optimizer.step()


def _a_process_set_of_one(rank: int, world: int) -> None:
    alone = hvd.add_process_set([0])
    model, optimizer = _net(process_set=alone)
    _backward(model, 2.0 if rank else 1.0)
    optimizer.step()
    assert model.weight.item() == (0.0 if rank else 0.5)  # each rank alone
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    hvd.remove_process_set(alone)


BEHAVIOUR = (
    _what_is_distributed_and_how_it_is_numbered,
    _a_step_through_two_optimizers,
    _misuse_of_a_step,
    _a_step_that_failed_is_forgotten,
    _clipping,
    _a_sum_is_not_summed_twice,
    _a_gradient_that_only_one_rank_has,
    _parameters_that_freeze_and_thaw,
    _a_closure_that_only_one_rank_learns_by,
    _gradients_of_a_step_that_is_gone_back_from,
    _parameters_that_come_later,
    _what_sits_on_an_optimizer,
    _an_optimizer_that_is_gone_sends_nothing,
    _sparse_gradients,
    _an_embedding_that_one_rank_does_not_use,
    _who_had_no_step_before_a_join,
    _a_process_set_of_one,
    _a_gradient_of_two_layouts,  # last: it leaves a gradient in flight
)


def _interrupted(
    rank: int, world: int, addresses: list[str], job: str, where: tuple[type, str]
) -> list[float]:
    """Ctrl-C interrupts rank 0 in a function of its second step; the program steps again."""

    def interrupt(*_: object) -> None:
        patch.undo()
        raise KeyboardInterrupt

    be_horovod(rank, world, addresses, job)
    hvd.init()
    weight = nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])

    def step(number: float) -> float:
        optimizer.zero_grad()
        (weight * (number + rank)).sum().backward()
        optimizer.step()
        assert weight.grad is not None
        return float(weight.grad[0])

    found = [step(10)]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(hvd.HorovodInternalError):
        if rank == 0:
            patch.setattr(*where, interrupt)
            with pytest.raises(KeyboardInterrupt):
                step(100)
        for number in (100, 1_000, 10_000):
            found.append(step(number))
    hvd.shutdown()
    return found


@pytest.mark.parametrize(
    "where",
    [(Gradients, "_hook_trainable"), (torch.optim.SGD, "step")],
    ids=["the wait", "the update"],
)
def test_an_interrupt_in_a_step_ends_horovod(
    addresses: list[str], job: str, where: tuple[type, str]
) -> None:
    """Regression: the repeated step met the next step of the other ranks: wrong gradients."""
    zero, one = run_ranks(2, _interrupted, addresses, job, where)
    assert zero == [10.5]
    assert one in ([10.5], [10.5, 100.5])
