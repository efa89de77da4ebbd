"""DDP's communication hook: the mean of each bucket of gradients through a group.

After a failure ``backward()`` raises a RuntimeError with the text of the error, and
``state.last_error`` has the error itself. The optimizer must not step after a failure.
"""

# No "from __future__ import annotations": DDP compares the hook's annotations with real classes.
import contextlib
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reducer.wire.codes import DType, ReduceOp
from reducer_client.dtypes import WireDtype, check_wire_dtype, is_quantised, narrow_to
from reducer_client.framework_errors import remember
from reducer_client.group import Group
from reducer_client.torch.hook.narrowing import NarrowingGauge
from reducer_client.torch.hook.residuals import Residuals
from reducer_client.torch.staging.staging import Stagings
from reducer_client.torch.staging.transfer import OnDone, Transfer, Way
from reducer_client.torch.tensors.host import carried_dtype, summable
from reducer_client.torch.tensors.packing import Packing
from reducer_client.work import Timeout, Work

__all__ = [
    "ReductionState",
    "all_reduce_hook",
    "attach",
    "average",
    "exchange",
    "next_number",
    "take",
]

TensorFuture = torch.futures.Future[torch.Tensor]
# submit(host, on_done) starts a collective on a host tensor, in place. With a way that is sliced or
# by stream, also parts= or words=.
Submit = Callable[..., object]
_PLAIN = Way()

_state_numbers: "weakref.WeakKeyDictionary[Group, itertools.count[int]]" = (
    weakref.WeakKeyDictionary()
)


class ReductionState:
    """State of ``all_reduce_hook`` for one DDP module.

    A pickle of the state, for example in a checkpoint, does not contain the group. Set
    ``state.group`` after loading.

    Args:
        group: the joined group that sums the gradients.
        wire_dtype: the dtype in which float32 buckets are sent, as for ``Group.all_reduce``, such
            as ``"bfloat16"`` or ``"int8"``.
        error_feedback: with a quantised ``wire_dtype``, the module of which the buckets are: what
            rounding keeps back is added to the next gradients of the same parameters. Save
            ``state_dict`` of every rank in each checkpoint. The residuals take as much memory, on
            the host, as the gradients. After a failed step some of them may be those of that step.
        prioritize: send the latest bucket first, because the next forward pass needs its layers
            first.
        timeout: timeout of a bucket, in seconds or a timedelta. The step then fails with an error
            that names the absent ranks. By default the group's ``step_timeout`` if ``connect`` was
            given one, else the timeout of the process group.
        process_group: the process group of the module. By default torch's default group.
        prefix: prefix of the keys of the buckets. By default the number of this state within the
            group, so all ranks must create their states in the same order.

    Attributes:
        last_error: the error of the last failed reduction, or None.
        bytes_reduced: bytes of all gradients reduced so far.
        bytes_on_wire: bytes sent and received for them, without frame headers and retransmissions.
        narrowing: the cost of ``wire_dtype``: ``narrowing.error`` and ``narrowing.overflows``.
    """

    def __init__(
        self,
        group: Group,
        *,
        wire_dtype: WireDtype | None = None,
        error_feedback: nn.Module | None = None,
        prioritize: bool = False,
        timeout: Timeout | None = None,
        process_group: dist.ProcessGroup | None = None,
        prefix: str | None = None,
    ) -> None:
        check_wire_dtype(wire_dtype)
        if error_feedback is not None and not is_quantised(wire_dtype):
            raise ValueError(
                f"error_feedback with wire_dtype={wire_dtype!r}: expected a quantised one, such as "
                "'int8'"
            )
        if prefix is None:
            prefix = f"ddp{next_number(group)}"
        self.group: Group | None = group
        self.wire_dtype = wire_dtype
        self.feedback = None if error_feedback is None else Residuals(error_feedback, "cpu")
        self.prioritize = prioritize
        self.prefix = prefix
        if timeout is None:
            timeout = group.step_timeout or _torch_timeout(process_group)
        self.timeout: Timeout | None = timeout
        self.bytes_reduced = 0
        self.bytes_on_wire = 0
        self.narrowing = NarrowingGauge(wire_dtype)
        self.last_error: Exception | None = None
        self.stagings = Stagings()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"group": None, "last_error": None, "stagings": Stagings()}

    def keep(self, error: Exception) -> None:
        """Keep the error of a failed reduction, of which torch keeps only the text."""
        self.last_error = error
        remember(error)

    def joined_group(self) -> Group:
        """The group. Raises RuntimeError if the state was unpickled and has no new group yet."""
        if self.group is None:
            name = type(self).__name__
            raise RuntimeError(f"this {name} was unpickled: set state.group to a new group")
        return self.group

    def state_dict(self) -> dict[str, Any]:
        """The residuals of this rank by parameter name; none without ``error_feedback``."""
        return {"residuals": {} if self.feedback is None else self.feedback.state_dict()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load a ``state_dict``.

        Raises ValueError if it belongs to another model, or has residuals that this state without
        ``error_feedback`` has no use for.
        """
        if self.feedback is not None:
            self.feedback.load_state_dict(saved["residuals"])
        elif saved["residuals"]:
            raise ValueError("residuals were saved: expected a state with error_feedback")

    def residual(
        self, flat: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> torch.Tensor | None:
        """The residuals of these parameters' flat gradients in host memory, if there are any."""
        if self.feedback is None or flat.dtype is not torch.float32:
            return None
        return self.feedback.row(parameters)

    def submit(
        self,
        host: torch.Tensor,
        bucket: int,
        on_done: OnDone,
        residual: torch.Tensor | None = None,
        **filling: Any,
    ) -> Work[Any]:
        """Start the mean over all ranks of a bucket in contiguous CPU memory, in place.

        ``filling``: ``parts`` or ``words`` of ``Group.all_reduce``, if not all of it is there.
        """
        group = self.joined_group()
        self.narrowing.observe(host)
        narrow = self.wire_dtype if host.dtype is torch.float32 else None
        held = DType[str(host.dtype).removeprefix("torch.").upper()]
        self.bytes_on_wire += narrow_to(ReduceOp.MEAN, held, narrow).bytes(host.numel())
        array, dtype = summable(host)
        return group.all_reduce(
            array,
            op="mean",
            key=f"{self.prefix}/bucket{bucket}",
            out=array,
            wire_dtype=narrow,
            dtype=dtype,
            residual=None if residual is None else residual.numpy(),
            priority=bucket if self.prioritize else 0,
            on_done=on_done,
            timeout=self.timeout,
            **filling,
        )


def all_reduce_hook(
    state: ReductionState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # only defined if torch has c10d
) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook: replaces a bucket by its mean over all ranks.

    Buckets are float32, float64, float16 or bfloat16, on the CPU or a CUDA device. Raises TypeError
    for sparse gradients.
    """
    flat = take(state, bucket)
    return average(state, flat, bucket.index(), state.residual(flat, bucket.parameters()))


def take(state: ReductionState, bucket: Any) -> torch.Tensor:
    """The flat gradients of a bucket; adds their size to ``bytes_reduced``.

    Raises TypeError if the gradients are sparse.
    """
    tensor: torch.Tensor = bucket.buffer().detach()
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"sparse gradients of shape {tuple(tensor.shape)}: expected dense ones; make the "
            "embedding with sparse=False"
        )
    state.bytes_reduced += tensor.numel() * tensor.element_size()
    return tensor


def average(
    state: ReductionState, tensor: torch.Tensor, bucket: int, residual: torch.Tensor | None = None
) -> TensorFuture:
    """Replace a bucket by its mean over all ranks. Errors as for ``exchange``."""

    def submit(host: torch.Tensor, on_done: OnDone, **filling: Any) -> object:
        return state.submit(host, bucket, on_done, residual, **filling)

    way = _way(state, tensor, residual) if tensor.is_cuda else _PLAIN
    if way.carried is not None:
        state.narrowing.observe(tensor)
    return exchange(state, tensor, submit, way)


def _way(state: ReductionState, tensor: torch.Tensor, residual: torch.Tensor | None) -> Way:
    """How a bucket on a device goes to the host and back."""
    group = state.joined_group()
    if residual is not None or not isinstance(group, Group):  # a hierarchy sums whole buckets
        return _PLAIN
    carried = carried_dtype(tensor.dtype, state.wire_dtype)
    narrows = tensor.dtype is torch.float32 and state.wire_dtype not in (None, "float32")
    # The gauge reads whole buckets in host memory, and finds there what overflows in float16.
    if carried is torch.float16 or (narrows and carried is None):
        return _PLAIN
    return Way(carried, sliced=True, by_stream=group.settings.cuda_wait == "stream")


def exchange(
    state: ReductionState,
    tensor: torch.Tensor,
    submit: Submit,
    way: Way = _PLAIN,
) -> TensorFuture:
    """Run a collective in place: on a CPU tensor itself, or on a host copy of a CUDA tensor.

    ``way`` is for CUDA tensors. Errors are kept in the state. They are raised here or by the
    returned future; with ``way.by_stream`` the group ends instead, and the result is NaN.
    """
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"gradients on {tensor.device}: only cpu and cuda are supported")
    try:
        return _Exchange(state, tensor).start(submit, way)
    except Exception as error:
        state.keep(error)
        raise


def attach(
    model: DistributedDataParallel,
    group: Group,
    *,
    wire_dtype: WireDtype | None = None,
    error_feedback: bool = False,
    prioritize: bool = False,
    timeout: Timeout | None = None,
    prefix: str | None = None,
) -> ReductionState:
    """Send the gradients of a DDP module through the group. All ranks call this in the same order.

    ``ReductionState`` describes the arguments; ``error_feedback`` is whether there is any.

    Returns:
        The state of the hook.

    Raises:
        TypeError: ``model`` is not a DistributedDataParallel module.
        ValueError: an argument is invalid.
        RuntimeError: the module has a hook already.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"expected a DistributedDataParallel module, got {type(model).__name__}")
    state = ReductionState(
        group,
        wire_dtype=wire_dtype,
        error_feedback=model.module if error_feedback else None,
        prioritize=prioritize,
        timeout=timeout,
        process_group=model.process_group,
        prefix=prefix,
    )
    model.register_comm_hook(state, all_reduce_hook)
    return state


def next_number(group: Group) -> int:
    """The number of a state within its group, for the prefix of its keys."""
    return next(_state_numbers.setdefault(group, itertools.count()))


def _torch_timeout(group: dist.ProcessGroup | None) -> float | None:
    """The timeout of a process group in seconds: the shortest of its backends' timeouts.

    Torch has no public way to read this timeout.
    """
    if group is None and dist.is_initialized():
        group = dist.group.WORLD
    if group is None:
        return None
    found = []
    for device in ("cpu", "cuda"):
        with contextlib.suppress(AttributeError, RuntimeError):
            backend = group._get_backend(torch.device(device))
            found.append(backend.options._timeout.total_seconds())
    return min(found, default=None)


class _Exchange:
    """The collective on one tensor, and the future that DDP waits for."""

    def __init__(self, state: ReductionState, tensor: torch.Tensor) -> None:
        self._state = state
        self._tensor = tensor
        self._finished: TensorFuture = torch.futures.Future(
            devices=[tensor.device] if tensor.is_cuda else []
        )
        self._error: Exception | None = None

    def start(self, submit: Submit, way: Way) -> TensorFuture:
        staging = self._state.stagings.of(self._tensor.device)
        if staging is None:
            submit(self._tensor, self._complete)
            return self._finished.then(self._check)

        def on_host(host: torch.Tensor, _: object, *, on_done: OnDone, **filling: Any) -> object:
            return submit(host, on_done, **filling)

        packing = Packing([self._tensor])
        transfer = staging.start(packing, packing, on_host, self._complete, way)
        if transfer.by_stream:
            with staging.on_back():
                self._finished.set_result(self._tensor)
        return self._finished.then(self._check)

    # With CUDA the stream back is current, so that consumers of the future wait for that stream.
    def _complete(self, handle: Any) -> None:
        try:
            self._error = handle.exception()
        except Exception as error:  # only this rank lacks the result
            self._error = error
            self._state.joined_group().abort()
        if not (isinstance(handle, Transfer) and handle.by_stream):
            self._finished.set_result(self._tensor)
        elif self._error is not None:  # the optimizer may step with the result, which is NaN
            self._state.keep(self._error)
            self._state.joined_group().abort(str(self._error))

    # DDP would report an error that is set on its future as a failed cast. An error that a callback
    # raises keeps its text.
    def _check(self, _: TensorFuture) -> torch.Tensor:
        if self._error is not None:
            self._state.keep(self._error)
            raise self._error
        return self._tensor
