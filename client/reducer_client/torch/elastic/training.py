"""``Elastic``: data-parallel training whose workers come and go."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import torch
from torch.nn.parameter import UninitializedParameter

from reducer_client import elastic
from reducer_client.dtypes import WireDtype, check_wire_dtype
from reducer_client.elastic import ElasticGroup, founding
from reducer_client.torch.elastic.gradients import Gradients
from reducer_client.torch.elastic.model_state import HasState, ModelState
from reducer_client.torch.elastic.shards import Shards
from reducer_client.torch.tensors.memory import with_memory

OnWorkerLoss = Literal["shrink", "shrink_strict"]


class Elastic:
    """Trains a model with workers that come and go; each worker runs the same program.

    The constructor joins the job, or founds it with the others that start. Afterwards all workers
    have the same parameters, buffers, optimizer state and states of ``extra``. The founders take
    over the state of rank 0, and a worker that joins later takes over the state of the job. A
    training step is a backward() followed by `step`.

    Args:
        model: a plain module, not wrapped by DistributedDataParallel. Parameters that get no
            gradient in a step count as zeros.
        optimizer: an optimizer whose parameters are parameters of the model.
        addresses: the reducers, as for `reducer_client.elastic.connect`.
        workers: number of workers with which the job starts. By default ``REDUCER_WORKERS``.
        on_worker_loss: ``"shrink"``: a step in which a worker is lost goes on. Parts of the
            gradients may hold the contributions of different workers; each part is divided by the
            number of samples that it holds. ``"shrink_strict"``: such a step is summed again until
            all gradients hold the contributions of the same workers. This mode keeps a second copy
            of the gradients.
        bucket_cap_mb: maximum size of a bucket of gradients in MiB.
        by_samples: average over all samples of a step: set `samples` before backward(), or use
            `shards`. Else average over the workers, as DDP does.
        extra: further objects with ``state_dict`` and ``load_state_dict``, such as schedulers.
        wire_dtype: the dtype in which float32 gradients are sent, as for `Group.all_reduce`, such
            as ``"bfloat16"`` or ``"int8"``. A gradient is multiplied by the number of samples, so
            float16 may overflow.
        options: further options of `reducer_client.elastic.connect`.

    Raises:
        TypeError: the model is wrapped, or has a parameter of an unsupported kind.
        ValueError: an option is invalid.
        ReducerError: subclasses, as for `reducer_client.elastic.connect`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        addresses: str | list[str] | None = None,
        *,
        workers: int | None = None,
        on_worker_loss: OnWorkerLoss = "shrink",
        bucket_cap_mb: float = 25,
        by_samples: bool = True,
        extra: Mapping[str, HasState] | None = None,
        wire_dtype: WireDtype | None = None,
        **options: Any,
    ) -> None:
        if on_worker_loss not in ("shrink", "shrink_strict"):
            raise ValueError(f"on_worker_loss={on_worker_loss!r}: expected shrink or shrink_strict")
        if bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb={bucket_cap_mb}: expected more than 0")
        check_wire_dtype(wire_dtype)
        _check(model, optimizer)
        self._model = model
        self._optimizer = optimizer
        self._extra = {f"extra {name}": part for name, part in (extra or {}).items()}
        self._shards: Shards | None = None
        self._reduced: tuple[frozenset[int], bool] | None = None
        self._state = ModelState(model, self._parts)
        self.group: ElasticGroup = elastic.connect(
            addresses, workers=workers, state=self._state, **options
        )
        try:
            if self.group.is_new:
                founding.share(self.group, self._state)
            parameters = [p for p in model.parameters() if p.requires_grad]
            self._summed = {id(parameter) for parameter in parameters}
            self._gradients = Gradients(
                self.group,
                [p for p in parameters if p.numel()],
                bucket_bytes=int(bucket_cap_mb * (1 << 20)),
                keeps=on_worker_loss == "shrink_strict",
                by_samples=by_samples,
                wire_dtype=wire_dtype,
            )
        except BaseException:
            self.group.abort()
            raise

    @property
    def rank(self) -> int:
        """This worker's rank. It changes when a new era begins (see `step`)."""
        return self.group.rank

    @property
    def world_size(self) -> int:
        """The number of workers at the beginning of this era, also of those lost since then."""
        return self.group.world_size

    @property
    def steps(self) -> int:
        """The steps that the job has made."""
        return self.group.steps

    @property
    def settled(self) -> int:
        """The last step that is complete at every worker; see `ElasticGroup.settled`.

        Call `settle` before you save a checkpoint, or give a checkpoint its final name only when
        ``settled`` has reached its step. The workers never repeat a settled step.
        """
        return self.group.settled

    @property
    def redone(self) -> int:
        """How many steps were summed again because a worker was lost (``shrink_strict``)."""
        return self._gradients.redone

    def settle(self) -> int:
        """Wait until every worker has completed the last step. Returns its number."""
        return self.group.settle()

    @property
    def samples(self) -> int | None:
        """The samples of this worker in this step. Set the number before backward()."""
        return self._gradients.samples

    @samples.setter
    def samples(self, number: int) -> None:
        self._gradients.announce(number)

    def shards(self, size: int, batch: int, seed: int = 0) -> Shards:
        """Deal the samples of a data set, ``batch`` to each worker in a step, shuffled by ``seed``.

        All workers give the same arguments. A worker that joins goes on where the others are.
        """
        if self._shards is not None:
            raise RuntimeError("an Elastic has one data set: shards() was called before")
        shards = Shards(size, batch, seed, lambda: self.rank, self._gradients.announce)
        shards.deal_to(range(self.world_size))
        state = self._state.left.pop("shards", None)
        if state is not None:
            shards.load_state_dict(state)
        self._shards = shards
        return shards

    @contextmanager
    def no_sync(self) -> Generator[None]:
        """Context in which backward() accumulates gradients, and does not send them."""
        self._gradients.is_paused = True
        try:
            yield
        finally:
            self._gradients.is_paused = False

    def reduce(self) -> None:
        """Wait for the means of the gradients, which are the same bits on all workers.

        `step` does this, too. Call `reduce` before, to clip the gradients for example: the
        gradients of backward() hold only this worker's samples.
        """
        if self._reduced is not None:
            return
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None and id(parameter) not in self._summed:
                raise RuntimeError(
                    f"parameter {name!r} got a gradient, and required none when the Elastic was "
                    "made: workers would train different models"
                )
        self._reduced = self._gradients.reduce()

    def step(
        self,
        after: Callable[[], object] | None = None,
        *,
        update: Callable[[], object] | None = None,
    ) -> bool:
        """End a training step: gradients, ``optimizer.step()``, ``zero_grad()``.

        If no sample is in the sums, for example because the workers that had samples are lost, the
        optimizer makes no step.

        Args:
            after: called after the optimizer's step. A program that changes other state in each
                step, such as a scheduler, must change it here, because workers that join take over
                the state at the end of `step`.
            update: called instead of ``optimizer.step()``, for a GradScaler for example.

        Returns:
            Whether a new era has begun: there are other workers, and ``rank`` and ``world_size``
            may have changed.

        Raises:
            PeerLostError: the other workers took this process for lost, or too few are left.
            ReducerError: other subclasses. The training cannot go on.
        """
        self.reduce()
        assert self._reduced is not None
        (members, has_samples), self._reduced = self._reduced, None
        if has_samples:
            (update or self._optimizer.step)()
        self._model.zero_grad(set_to_none=True)
        if self._shards is not None:
            self._shards.end_step(members)
        if after is not None:
            after()
        is_new = self.group.step()
        if is_new and self._shards is not None:
            self._shards.deal_to(range(self.world_size))
        return is_new

    def close(self) -> None:
        """Leave the job. The other workers go on."""
        self._gradients.remove()
        self.group.close()

    def __enter__(self) -> Elastic:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gradients.remove()
        self.group.__exit__(kind, error, trace)

    def _parts(self) -> dict[str, HasState]:
        parts: dict[str, HasState] = {"optimizer": self._optimizer, **self._extra}
        if self._shards is not None:
            parts["shards"] = self._shards
        return parts


def _check(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise TypeError or ValueError for what cannot be trained by `Elastic`."""
    for module in model.modules():
        name = type(module).__name__
        if name in ("DistributedDataParallel", "FullyShardedDataParallel"):
            raise TypeError(
                f"the model is or contains a {name}, whose workers cannot change: give the plain "
                "module (model.module of a DistributedDataParallel). Elastic sums the gradients "
                "itself"
            )
    if not any(p.requires_grad and p.numel() for p in model.parameters()):
        raise ValueError("no parameter of the model requires a gradient")
    known = set()
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise TypeError(f"parameter {name!r} has no shape yet: run a forward pass first")
        if with_memory(parameter.detach()).device.type not in ("cpu", "cuda"):
            raise TypeError(f"parameter {name!r} on {parameter.device}: expected cpu or cuda")
        known.add(id(parameter))
    for group in optimizer.param_groups:
        if any(id(parameter) not in known for parameter in group["params"]):
            raise ValueError("the optimizer has parameters that the model does not have")
