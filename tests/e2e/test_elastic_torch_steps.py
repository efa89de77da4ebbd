"""`Elastic` with workers that are threads: means, founding, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest

from reducer_client import RoundTimeoutError, elastic
from tests.support.elastic_job import ElasticJob
from tests.support.frameworks import needs_extra

pytestmark = needs_extra("torch")

torch = pytest.importorskip("torch")
nn = torch.nn

Program = Callable[[int], Any]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two reducers, and a registry. Each test uses a job name of its own."""
    with ElasticJob(tmp_path_factory.mktemp("registry")) as job:
        yield job.addresses


@pytest.fixture
def join(addresses: list[str], job: str) -> Callable[..., Any]:
    from reducer_client.torch import Elastic

    def join(model: Any, optimizer: Any = None, workers: int = 1, **options: Any) -> Any:
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
        return Elastic(
            model, optimizer, addresses, workers=workers, job=job,
            join_timeout=30.0, step_timeout=30.0, **options,
        )  # fmt: skip

    return join


@pytest.fixture(params=["host", "staged"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether gradients are read where they are, or are copied as from a GPU."""
    from reducer_client.torch.elastic import gradients
    from reducer_client.torch.staging.staging import Staging
    from tests.support.simulated_device import ImmediateDevice

    if request.param == "staged":

        def bucket(*arguments: Any, **options: Any) -> Any:
            staging = Staging(ImmediateDevice())
            return gradients_bucket(*arguments, **{**options, "staging": staging})

        def returns_late(group: Any, *arguments: Any, on_done: Any = None, **options: Any) -> Any:
            if on_done is None:
                return all_reduce(group, *arguments, **options)
            done = Event()

            def tell(work: Any) -> None:
                on_done(work)
                done.set()

            work = all_reduce(group, *arguments, on_done=tell, **options)
            assert done.wait(30.0)
            return work

        gradients_bucket, all_reduce = gradients.Bucket, elastic.ElasticGroup.all_reduce
        monkeypatch.setattr(gradients, "Bucket", bucket)
        monkeypatch.setattr(elastic.ElasticGroup, "all_reduce", returns_late)
    return str(request.param)


def run(count: int, program: Program) -> list[Any]:
    with ThreadPoolExecutor(count) as threads:
        return [done.result(60) for done in [threads.submit(program, n) for n in range(count)]]


class Weights(nn.Module):
    """Two parameters; the gradient of each is the mean of the inputs, which are integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(6))
        self.last = nn.Parameter(torch.zeros(6))

    def forward(self, inputs: Any) -> Any:
        return ((self.first + self.last) * inputs).sum(1).mean()


def inputs(rank: int, step: int, samples: int) -> Any:
    rng = np.random.default_rng((rank, step))
    return torch.from_numpy(rng.integers(-99, 99, (samples, 6)).astype(np.float32))


TWO_BUCKETS = {"bucket_cap_mb": 6 * 4 / (1 << 20)}


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("mode", ["shrink", "shrink_strict"])
def test_a_mean_by_samples_is_that_of_one_process_to_the_bit(join: Any, mode: str) -> None:
    sizes = (1, 2, 4)

    def program(number: int) -> Any:
        model, means = Weights(), []
        with join(model, workers=3, rank=number, on_worker_loss=mode, **TWO_BUCKETS) as elastic:
            for step in range(3):
                samples = sizes[(number + step) % 3]
                elastic.samples = samples
                model(inputs(number, step, samples)).backward()
                elastic.reduce()
                means.append([model.first.grad.clone(), model.last.grad.clone()])
                elastic.step()
            return means, model.first.detach().clone()

    weights = torch.zeros(6)
    ranks = run(3, program)
    for step in range(3):
        parts = [inputs(n, step, sizes[(n + step) % 3]) for n in range(3)]
        mean = torch.cat(parts).sum(0) / 7
        weights -= mean
        for means, _ in ranks:
            assert all(torch.equal(each, mean) for each in means[step])
    assert all(torch.equal(final, weights) for _, final in ranks)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("mode", ["shrink", "shrink_strict"])
def test_a_part_of_a_sum_is_divided_for_the_ranks_that_are_in_it(join: Any, mode: str) -> None:
    sizes = (1, 4, 2)

    def program(number: int) -> Any:
        model = Weights()
        with join(model, workers=3, rank=number, on_worker_loss=mode, **TWO_BUCKETS) as elastic:
            elastic.samples = sizes[number]
            if number == 1:  # its last parameter is in the sums when it leaves, and the first not
                loss = (model.last * inputs(1, 0, 4)).sum(1).mean()
                loss.backward()
                elastic._gradients.buckets[0].sum.wait(30.0)
                elastic.group.abort()
                return None
            model(inputs(number, 0, sizes[number])).backward()
            elastic.reduce()
            return model.first.grad, model.last.grad, elastic.redone

    ranks = run(3, program)
    two = (inputs(0, 0, 1).sum(0) + inputs(2, 0, 2).sum(0)) / 3
    three = (inputs(0, 0, 1).sum(0) + inputs(1, 0, 4).sum(0) + inputs(2, 0, 2).sum(0)) / 7
    for first, last, redone in (ranks[0], ranks[2]):
        assert torch.equal(first, two)
        assert torch.equal(last, two if mode == "shrink_strict" else three)
        assert redone == (mode == "shrink_strict")


def test_no_gradient_is_sent_before_the_counts_of_all_ranks_are_known(join: Any) -> None:
    """Else a rank could be in a sum, and be lost before its count is known."""

    def program(number: int) -> Any:
        model = Weights()
        with join(model, workers=2, rank=number, **TWO_BUCKETS) as elastic:
            if number == 0:
                elastic.samples = 1
                model(inputs(0, 0, 1)).backward()
                elastic.reduce()
                return model.last.grad
            zeros = np.zeros(6, np.float32)
            early = elastic.group.all_reduce(zeros, key="elastic/gradients0", out=zeros)
            with pytest.raises(RoundTimeoutError):
                early.wait(0.5)
            elastic.samples = 3
            early.wait(30.0)
            elastic.group.abort()
            return None

    assert torch.equal(run(2, program)[0], inputs(0, 0, 1)[0] / 4)


def test_the_mean_over_workers_does_not_look_at_samples(join: Any) -> None:
    def program(number: int) -> Any:
        model = Weights()
        with join(model, workers=2, rank=number, by_samples=False) as elastic:
            model(inputs(number, 0, 1 + number)).backward()
            elastic.reduce()
            return model.first.grad

    ranks = run(2, program)
    mean = (inputs(0, 0, 1).sum(0) + inputs(1, 0, 2).mean(0)) / 2
    assert torch.equal(ranks[0], mean) and torch.equal(ranks[1], mean)


def test_a_worker_without_samples_takes_part(join: Any) -> None:
    def program(number: int) -> Any:
        model = Weights()
        with join(model, workers=2, rank=number) as elastic:
            elastic.samples = 2 * number
            loss = model(inputs(number, 0, 2))
            (loss if number else loss * float("nan")).backward()  # as of a mean of no samples
            elastic.step()
            return model.first.detach()

    assert all(torch.equal(end, -inputs(1, 0, 2).mean(0)) for end in run(2, program))


def test_accumulated_gradients_go_out_once(join: Any) -> None:
    model = Weights()
    with join(model) as elastic:
        elastic.samples = 2
        with elastic.no_sync():
            model(inputs(0, 0, 1)).backward()
        model(inputs(0, 1, 1)).backward()
        with pytest.raises(RuntimeError, match="a second backward"):
            model(inputs(0, 2, 1)).backward()
    with join(Weights(), run_id="two") as elastic:
        elastic.samples = 2
        with elastic.no_sync():
            elastic._model(inputs(0, 0, 1)).backward()
        elastic.step()
        assert torch.equal(elastic._model.first, -inputs(0, 0, 1)[0])


class Everything(nn.Module):
    """A parameter or buffer of each kind."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.p64 = nn.Parameter(torch.full((3, 2), value, dtype=torch.float64))
        self.b16 = nn.Parameter(torch.full((5,), value, dtype=torch.bfloat16))
        self.p16 = nn.Parameter(torch.full((5,), value, dtype=torch.float16))
        self.strided = nn.Parameter(torch.full((4, 3), value).t())
        self.scalar = nn.Parameter(torch.tensor(value))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("count", torch.tensor(int(value)))
        self.register_buffer("mask", torch.tensor([value > 1, value < 1]))

    def forward(self) -> Any:
        return sum(p.float().sum() for p in self.parameters())


def test_founders_take_over_the_state_of_rank_0(join: Any) -> None:
    def program(number: int) -> Any:
        model = Everything(1.0 + number)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + number), amsgrad=True)
        for _ in range(1 + number):  # as if a checkpoint had been loaded
            model().backward()
            optimizer.step()
        optimizer.zero_grad()
        with join(model, optimizer, workers=3, rank=number) as elastic:
            elastic.samples = 1
            model().backward()
            elastic.step()
            return model.state_dict(), optimizer.state_dict()

    states = run(3, program)
    for model, optimizer in states[1:]:
        for name, tensor in model.items():
            assert torch.equal(tensor, states[0][0][name]), name
        assert str(optimizer) == str(states[0][1])
    assert states[0][1]["state"][0]["step"] == 2


def test_only_float32_gradients_are_narrowed(join: Any) -> None:
    model = Everything(1.0)
    with join(model, wire_dtype="bfloat16") as elastic:
        elastic.samples = 1
        factor = 1 + 2.0**-20
        (model.p64.sum() * factor + model.scalar * factor).backward()
        elastic.reduce()
        assert (model.p64.grad == factor).all() and model.scalar.grad == 1.0


OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW([{"params": [x], "lr": 0.1} for x in p]),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_worker_that_joins_takes_over_all_state(join: Any, optimizer: str) -> None:
    runs, stop = Event(), list[int]()

    def program(number: int) -> Any:
        model = Everything(1.0 + number)
        rule = OPTIMIZERS[optimizer](model.parameters())
        rate = torch.optim.lr_scheduler.MultiStepLR(rule, [1, 3], gamma=0.5)

        def state() -> str:
            parts = (model, rule, rate, shards)
            return str([part.state_dict() for part in parts])

        if number == 2:
            runs.wait(30.0)
        with join(model, rule, workers=2, rank=number, extra={"rate": rate}) as elastic:
            shards = elastic.shards(1_000_000, 2)
            states = {elastic.steps: state()}
            if number == 2:
                stop.append(elastic.steps + 2)  # before its sums let the others go on
            for _ in shards:
                model().backward()
                elastic.step(rate.step)
                states[elastic.steps] = state()
                runs.set()
                if stop and elastic.steps >= stop[0]:
                    break
            return states, elastic.world_size

    (first, _), (second, _), (late, size) = run(3, program)
    assert size == 3 and len(late) == 3
    for step, state in late.items():
        assert first[step] == second[step] == state, step


def test_the_founding_goes_on_without_a_rank_0_that_is_lost(
    addresses: list[str], job: str, join: Any
) -> None:
    from reducer_client.torch.elastic.model_state import ModelState

    def program(number: int) -> Any:
        model = Weights()
        with torch.no_grad():
            model.first.fill_(number)
        if number == 0:
            state = ModelState(model, dict)
            elastic.connect(addresses, workers=3, job=job, rank=0, state=state).abort()
            return None
        with join(model, workers=3, rank=number) as training:
            training.step()
            return model.first.detach()

    _, *ends = run(3, program)
    assert all(torch.equal(end, torch.ones(6)) for end in ends)


def test_gradients_are_clipped_and_scaled_between_the_sums_and_the_update(join: Any) -> None:
    def program(number: int) -> Any:
        model, called = Weights(), list[int]()
        with join(model, workers=2, rank=number, by_samples=False) as elastic:
            (model(inputs(number, 0, 1)) * 8).backward()
            elastic.reduce()
            for parameter in model.parameters():
                parameter.grad /= 8
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
            elastic.step(update=lambda: (called.append(1), elastic._optimizer.step()))
            assert called == [1] and model.first.grad is None
            return model.first.detach()

    mean = (inputs(0, 0, 1)[0] + inputs(1, 0, 1)[0]) / 2
    assert all(torch.equal(end, -mean.clamp(-1, 1)) for end in run(2, program))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["shrink", "shrink_strict"])
def test_a_model_on_a_gpu_is_trained_alike(join: Any, mode: str) -> None:
    def program(number: int) -> Any:
        model = Everything(1.0 + number).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        with join(model, optimizer, workers=2, rank=number, on_worker_loss=mode) as elastic:
            for _ in range(3):
                elastic.samples = 1 + 2 * number
                (model() * (1 + number)).backward()
                elastic.reduce()
                means = {float(p.grad.mean()) for p in model.parameters() if p.numel()}
                assert means == {1.75}, "(1 x 1 + 3 x 2) / 4"
                elastic.step()
            return model.state_dict(), optimizer.state_dict()

    first, second = run(2, program)
    assert str(first) == str(second)


def test_wrapped_models_are_refused_with_what_to_do(join: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = Weights()
    for model in (wrapped, nn.Sequential(wrapped)):
        with pytest.raises(TypeError, match=r"DistributedDataParallel.*give the plain module"):
            join(model)


def test_what_would_make_models_differ_is_refused(join: Any) -> None:
    model, other = Weights(), Weights()
    with pytest.raises(ValueError, match="parameters that the model does not have"):
        join(model, torch.optim.SGD(other.parameters(), lr=1.0))
    model.last.requires_grad_(False)
    with join(model) as elastic:
        with pytest.raises(RuntimeError, match="number of this rank's samples is unknown"):
            model(inputs(0, 0, 1)).backward()
        model.last.requires_grad_(True)
        with pytest.raises(ValueError, match="-1 samples"):
            elastic.samples = -1
        elastic.samples = 1
        model(inputs(0, 0, 1)).backward()
        with pytest.raises(RuntimeError, match="'last' got a gradient"):
            elastic.step()
    with pytest.raises(ValueError, match="on_worker_loss='stop'"):
        join(model, on_worker_loss="stop")
    with pytest.raises(ValueError, match="no parameter of the model requires a gradient"):
        join(nn.Linear(1, 1).requires_grad_(False))
    with pytest.raises(TypeError, match="'weight' on meta: expected cpu or cuda"):
        join(nn.Linear(1, 1, device="meta"))


def test_a_step_is_settled_when_every_worker_has_completed_it(join: Any) -> None:
    looked = Event()

    def program(number: int) -> None:
        with join(Weights(), workers=2, rank=number) as elastic:
            assert elastic.settled == 0
            if number == 1:
                elastic.step(after=lambda: looked.wait(30.0))
            else:
                elastic.step()
                assert (elastic.steps, elastic.settled) == (1, 0), "rank 1 is in step 1"
                looked.set()
                assert elastic.settle() == 1
            elastic.step()
            assert elastic.settled >= 1

    run(2, program)
