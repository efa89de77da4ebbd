"""`Overlap` over real reducers: the bits of DistributedDataParallel, waits, losses, refusals."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from reducer_client import Group, MismatchError, PeerLostError
from reducer_client.torch import Overlap, attach
from tests.support.ranks import Tell, join, run_ranks, start_ranks
from tests.support.torch_ranks import digest, gloo_and_group
from tests.support.wait import LOST_SECONDS

WORLD = 3
STEPS = 4
WORDS = 19
TWO_BUCKETS = 300 / (1 << 20)  # MiB; for the two layers of `Two`
SMALL = 2000 / (1 << 20)  # MiB; most parameters then have a bucket of their own


class Net(nn.Module):
    """A transformer. Attention never calls its ``out_proj``, and the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        layer = partial(nn.TransformerEncoderLayer, 16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(2))
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, tokens: Any) -> Any:
        hidden = self.words(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return functional.linear(hidden * self.scale, self.words.weight)


def _tokens(rank: int, step: int) -> Any:
    return torch.randint(WORDS, (4, 6), generator=torch.Generator().manual_seed(100 * step + rank))


def _loss(model: Any, tokens: Any) -> Any:
    return functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _sgd(model: nn.Module, **options: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, **options)


def _adamw(model: nn.Module) -> Any:
    with_decay = [p for p in model.parameters() if p.ndim > 1]
    without = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": without, "weight_decay": 0.0}, {"params": with_decay, "lr": 0.01}]
    return torch.optim.AdamW(groups, lr=0.02)


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "sgd": _sgd,
    "foreach": partial(_sgd, foreach=True),
    "adamw": _adamw,
}


def _train(model: Any, optimizer: Any, rank: int, no_sync: Any, scheduled: bool) -> list[str]:
    """The bits of all losses and of each module's parameters when it used them."""
    seen: list[str] = []

    def note(module: nn.Module, *_: object) -> None:
        uses_children = isinstance(module, nn.MultiheadAttention)
        values = [p.detach().numpy().tobytes() for p in module.parameters(recurse=uses_children)]
        seen.append(hashlib.sha256(b"".join(values)).hexdigest())

    for module in model.modules():
        module.register_forward_hook(note)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if scheduled else None
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        accumulates = step == 1
        with no_sync() if accumulates else nullcontext():
            loss = _loss(model, _tokens(rank, step))
            loss.backward()
        seen.append(loss.detach().numpy().tobytes().hex())
        if not accumulates:
            optimizer.step()
            model.zero_grad(set_to_none=step % 2 == 1)
            if schedule is not None:
                schedule.step()
    return seen


def _both(rank: int, world: int, addresses: list[str], job: str, store: str) -> list[str]:
    ends = []
    with gloo_and_group(rank, world, addresses, job, store) as group:
        for name, make in OPTIMIZERS.items():
            options: dict[str, Any] = {"wire_dtype": "bfloat16"} if name == "foreach" else {}
            torch.manual_seed(7)
            plain = DistributedDataParallel(Net(), bucket_cap_mb=SMALL)
            attach(plain, group, **options)
            scheduled = name != "sgd"
            expected = _train(plain, make(plain), rank, plain.no_sync, scheduled)
            torch.manual_seed(7 if rank == 0 else rank)  # rank 0's parameters count
            model = Net()
            optimizer = make(model)
            with Overlap(model, optimizer, group, bucket_cap_mb=SMALL, **options) as overlap:
                seen = _train(model, optimizer, rank, overlap.no_sync, scheduled)
            # DistributedDataParallel itself is one module more.
            of_wrapper = hashlib.sha256(b"").hexdigest()
            assert sorted(seen) == sorted(_without(expected, of_wrapper, STEPS)), name
            assert digest(model) == digest(plain), name
            kept = [state["exp_avg"] for state in optimizer.state.values() if "exp_avg" in state]
            assert len(kept) == (len(list(model.parameters())) if name == "adamw" else 0)
            ends.append(digest(model))
    return ends


def _without(values: list[str], value: str, count: int) -> list[str]:
    rest = list(values)
    for _ in range(count):
        rest.remove(value)
    return rest


def test_every_module_uses_the_bits_of_plain_ddp(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    ends = run_ranks(WORLD, _both, addresses, job, str(tmp_path / "store"))
    assert all(end == ends[0] for end in ends)
    assert len(set(ends[0])) == len(OPTIMIZERS)


class Two(nn.Module):
    """Two layers, each with a bucket of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(8, 8)
        self.back = nn.Linear(8, 8)

    def forward(self, inputs: Any) -> Any:
        return self.back(self.front(inputs)).sum()


def _backward(model: Any) -> None:
    model(torch.ones(2, 8)).backward()


def _hold_back(overlap: Overlap, keys: tuple[int, ...]) -> list[Callable[[], object]]:
    """Let this rank keep these buckets to itself. Returns the calls that submit them."""
    submit, kept = overlap.state.submit, list[Callable[[], object]]()

    def hold(host: Any, bucket: int, *arguments: Any) -> Any:
        call = partial(submit, host, bucket, *arguments)
        return kept.append(call) if bucket in keys else call()

    overlap.state.submit = hold  # type: ignore[method-assign]
    return kept


def _one_bucket_is_late(
    rank: int, world: int, addresses: list[str], job: str, tell: Tell
) -> list[bool]:
    """Which parameters are updated when the front layer is through its second forward pass."""
    torch.set_num_threads(1)
    updated: list[bool] = []
    with join(rank, world, addresses, job) as group:
        torch.manual_seed(3)
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first = [p.detach().clone() for p in model.parameters()]

        def note(*_: object) -> None:
            pairs = zip(model.parameters(), first, strict=True)
            updated.extend(not torch.equal(now, then) for now, then in pairs)
            tell("front is through")

        with Overlap(model, optimizer, group, bucket_cap_mb=TWO_BUCKETS) as overlap:
            kept = _hold_back(overlap, (0,)) if rank == 1 else []
            _backward(model)
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                model.front.register_forward_hook(note)
            else:
                tell("stepped")
                tell.hear()
                (submit,) = kept
                submit()
                del overlap.state.submit
            _backward(model)
            optimizer.step()
    return updated


def test_a_forward_pass_waits_for_each_module_alone(addresses: list[str], job: str) -> None:
    with start_ranks(2, _one_bucket_is_late, addresses, job, talk=True) as ranks:
        assert ranks.receive(1) == "stepped"
        assert ranks.receive(0) == "front is through"
        ranks.send(1)
        outcomes = ranks.collect()
    assert outcomes[0].value == [True, True, False, False], outcomes[0].trace
    assert outcomes[1].error is None, outcomes[1].trace


def _a_worker_is_lost(
    rank: int, world: int, addresses: list[str], job: str, where: str, tell: Tell
) -> tuple[float, Any, Any]:
    torch.set_num_threads(1)
    with join(rank, world, addresses, job) as group:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        overlap = Overlap(model, optimizer, group, bucket_cap_mb=TWO_BUCKETS)
        if rank == 1:
            _hold_back(overlap, (0,))
        _backward(model)
        optimizer.step()
        tell("stepped")
        if rank == 1:
            tell.hear()
        waits = {
            "forward": lambda: model(torch.ones(2, 8)),
            "evaluation": lambda: model.eval().front(torch.ones(2, 8)),
            "saving": model.front.state_dict,
        }
        began = time.monotonic()
        with pytest.raises(PeerLostError) as caught:
            waits[where]()
        passed = time.monotonic() - began
        with pytest.raises(PeerLostError) as again:
            optimizer.step()
        with pytest.raises(PeerLostError):
            overlap.close()
        return passed, caught.value, again.value


@pytest.mark.parametrize("where", ["forward", "evaluation", "saving"])
def test_a_lost_worker_is_named_where_the_training_waits(
    addresses: list[str], job: str, where: str
) -> None:
    with start_ranks(2, _a_worker_is_lost, addresses, job, where, talk=True) as ranks:
        for rank in range(2):
            assert ranks.receive(rank) == "stepped"
        ranks.kill(1)
        outcome = ranks.collect_one(0, 30)
    assert outcome.error is None, outcome.trace
    passed, error, again = outcome.value
    assert error.rank == again.rank == 1
    assert passed < LOST_SECONDS


def _other_models(rank: int, world: int, addresses: list[str], job: str) -> None:
    with join(rank, world, addresses, job) as group:
        model = nn.Linear(8, 8 + rank)
        with pytest.raises(MismatchError):
            Overlap(model, torch.optim.SGD(model.parameters(), lr=0.1), group)


def test_ranks_with_different_models_are_told(addresses: list[str], job: str) -> None:
    run_ranks(2, _other_models, addresses, job)


# --- one worker -----------------------------------------------------------------------------------


@pytest.fixture
def model() -> Any:
    torch.manual_seed(1)
    return Two()


@pytest.fixture
def optimizer(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.5)


@pytest.fixture
def overlap(model: Any, optimizer: Any, solo: Group) -> Iterator[Overlap]:
    with Overlap(model, optimizer, solo) as overlap:
        yield overlap


@pytest.mark.usefixtures("overlap")
def test_a_changed_gradient_is_refused(model: Any, optimizer: Any) -> None:
    _backward(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1e6)
    with pytest.raises(RuntimeError, match=r"'front.weight': its gradient was changed.*clipping"):
        optimizer.step()


@pytest.mark.usefixtures("overlap")
def test_a_grad_scaler_is_refused(model: Any, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 8))).backward()
    with pytest.raises(ValueError, match="a GradScaler skips steps"):
        scaler.step(optimizer)


@pytest.mark.usefixtures("overlap")
def test_a_parameter_without_a_gradient_is_named(model: Any, optimizer: Any) -> None:
    model.front(torch.ones(2, 8)).sum().backward()
    with pytest.raises(RuntimeError, match=r"'back.weight' has no gradient of this step \(2 "):
        optimizer.step()


def test_two_backward_passes_need_no_sync(model: Any, optimizer: Any, overlap: Overlap) -> None:
    with overlap.no_sync():
        _backward(model)
    with pytest.raises(RuntimeError, match="has no gradient of this step"):
        optimizer.step()
    _backward(model)
    with pytest.raises(RuntimeError, match=r"a second backward\(\) in one step"):
        _backward(model)


@pytest.mark.usefixtures("overlap")
def test_a_module_that_is_not_called_is_named(model: Any, optimizer: Any) -> None:
    def forward(inputs: Any) -> Any:
        return functional.linear(model.back(inputs), model.front.weight, model.front.bias).sum()

    _backward(model)
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"'front.\w+': the forward pass used it without a call"):
        forward(torch.ones(2, 8)).backward()


@pytest.mark.usefixtures("overlap")
def test_an_update_takes_the_learning_rate_of_its_step(model: Any, optimizer: Any) -> None:
    before = model.back.bias.detach().clone()
    _backward(model)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 100.0
    optimizer.zero_grad()
    state = model.state_dict()
    torch.testing.assert_close(state["back.bias"], before - 0.5 * 2)  # the gradient is 2


def test_closing_gives_the_step_back(model: Any, optimizer: Any, solo: Group) -> None:
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    own = optimizer.step
    with Overlap(model, optimizer, solo):
        with pytest.raises(ValueError, match="another Overlap has it"):
            Overlap(model, optimizer, solo)
        with pytest.raises(TypeError, match="takes no closure"):
            optimizer.step(lambda: None)
        _backward(model)
        optimizer.step()
        schedule.step()
    assert optimizer.step is own
    before = model.back.bias.detach().clone()
    _backward(model)
    optimizer.step()
    assert not torch.equal(model.back.bias, before)
    with Overlap(model, optimizer, solo):  # the keys are new
        optimizer.zero_grad()
        _backward(model)
        optimizer.step()


class Counting(torch.optim.SGD):
    """Counts its steps in its groups, where all parameters share the count."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["steps"] = self.param_groups[0].get("steps", 0) + 1
        return super().step(closure)


def test_a_step_that_changes_the_groups_is_refused(model: Any, solo: Group) -> None:
    optimizer = Counting(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"Counting is not known to .* per_parameter=True"):
        Overlap(model, optimizer, solo)
    overlap = Overlap(model, optimizer, solo, per_parameter=True)
    _backward(model)
    optimizer.step()
    with pytest.raises(TypeError, match=r"changes its param_groups \('steps'\)"):
        overlap.close()


@pytest.mark.parametrize(
    ("change", "optimizer", "text"),
    [
        (None, partial(torch.optim.AdamW, fused=True), "fused=True: expected fused=False"),
        (None, torch.optim.LBFGS, "LBFGS updates all parameters together"),
        (None, lambda p: torch.optim.SGD(list(p)[:2]), r"it lacks 2 of the .*'back.weight'"),
        (lambda m: m.front, None, "2 of its parameters are not in the model"),
        (lambda m: m.to(torch.float8_e5m2), None, "expected float32, .*got torch.float8_e5m2"),
        (partial(torch.compile, backend="eager"), None, "contains a compiled module"),
        (lambda m: m.requires_grad_(False), None, "none of its parameters requires a gradient"),
    ],
)
def test_what_cannot_be_trained_so_is_refused(
    model: Any, solo: Group, change: Any, optimizer: Any, text: str
) -> None:
    made = (optimizer or torch.optim.SGD)(model.parameters())
    with pytest.raises((TypeError, ValueError), match=text):
        Overlap(change(model) if change else model, made, solo)


def test_a_sparse_gradient_is_refused(solo: Group) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    overlap = Overlap(model, optimizer, solo)
    with pytest.raises(TypeError, match="'weight': a sparse gradient"):
        model(torch.tensor([1, 2])).sum().backward()
    overlap.close()
