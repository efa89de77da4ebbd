"""``DiLoCo``: a callback for local steps whose outer steps are common to all ranks."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import keras
import numpy as np

from reducer_client.arrays import Array
from reducer_client.dtypes import WireDtype, check_wire_dtype
from reducer_client.errors import MismatchError, NumericError, name_ranks
from reducer_client.group import Group, wait_or_end
from reducer_client.keras.all_reduce import broadcast_variables
from reducer_client.keras.variables import DTYPES
from reducer_client.outer.fragments import balance
from reducer_client.outer.optimizer import AVERAGE, OuterSGD, blend
from reducer_client.outer.schedule import Schedule
from reducer_client.work import Timeout, Work

_numbers: weakref.WeakKeyDictionary[Group, itertools.count[int]] = weakref.WeakKeyDictionary()
_OWN = ("step", "outer", "velocity", "sent")  # the keys of a state


class DiLoCo(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Keras callback: each rank trains by itself, and all make an outer step every few batches.

    The semantics are those of `reducer_client.torch.DiLoCo`. A step is a call of the training
    function: a batch, or ``steps_per_execution`` batches. All ranks make the same number of steps.
    Training begins with the weights of rank 0. At its end, what was not exchanged yet is exchanged,
    and all ranks have the same weights. The state of the optimizer stays with each rank.

    Compile the model with an ordinary optimizer. Callbacks that end the training early must do so
    after the same step on all ranks.

    Args:
        group: the group of the ranks that train apart.
        every, fragments, delay, keep_local, outer: as for `reducer_client.torch.DiLoCo`.
        wire_dtype: how pseudo-gradients are sent, as for `Group.all_reduce`.
        average_buffers: make the non-trainable weights of floating point, such as the means of
            batch normalization, the mean of all ranks, with the first fragment.
        timeout: seconds or a timedelta for each wait. By default the group's ``step_timeout``.
        key: prefix of the keys. By default the number of this callback within the group.

    Raises ValueError and TypeError for arguments that are not as above; in training also
    RuntimeError for a model that is not built, NumericError if a rank has NaN or Inf in its
    weights, and other ReducerErrors.
    """

    def __init__(
        self,
        group: Group,
        *,
        every: int,
        fragments: int = 1,
        delay: int = 0,
        keep_local: float = 0.0,
        outer: OuterSGD | None = None,
        wire_dtype: WireDtype | None = None,
        average_buffers: bool = False,
        timeout: Timeout | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self.schedule = Schedule(every, fragments, delay, keep_local)
        self.outer = outer or OuterSGD()
        self.steps = 0
        self._timeout = timeout
        check_wire_dtype(wire_dtype)
        self._wire_dtype = wire_dtype
        self._average_buffers = average_buffers
        self._key = key or f"diloco-keras{next(_numbers.setdefault(group, itertools.count()))}"
        self._parts: list[_Part] = []  # one for each fragment, and one for the buffers
        self._variables: list[Any] = []
        self._loaded: Mapping[str, Any] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras. The first time, all ranks take over the weights of rank 0."""
        variables = [*self.model.trainable_variables]
        if not self._parts:
            self._begin(variables)
        elif [id(v) for v in variables] != [id(v) for v in self._variables]:
            raise RuntimeError(
                f"the model {self.model.name!r} has other trainable variables than in the "
                "beginning: make a callback for each model"
            )
        if self._loaded is not None:
            self._restore(self._loaded)
            self._loaded = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras: counts a step, merges and sends."""
        self.steps += 1
        self._merge_due()
        for index in self.schedule.sent_after(self.steps):
            for part in self._of(index):
                self._send(part, self.steps + self.schedule.delay)
        self._merge_due()

    def on_train_end(self, logs: Any = None) -> None:
        """Called by Keras: exchanges all that was not exchanged yet."""
        for part in self._parts:
            if part.work is not None:
                self._merge(part, self.schedule.keep_local)
        late = [part for part in self._parts if part.sent != self.steps]
        for part in late:
            self._send(part, self.steps)
        for part in late:
            self._merge(part, 0.0)
        for part in self._parts:
            part.show(0.0)

    def state_dict(self) -> dict[str, Any]:
        """The outer weights and the state of the outer optimizer, as lists of arrays.

        Save it between two calls of ``fit``, with the model. Raises RuntimeError before the first
        training, and while something is in flight.
        """
        if not self._parts or any(part.work is not None for part in self._parts):
            raise RuntimeError("state_dict: call it after fit(), when nothing is in flight")
        return {
            "step": self.steps,
            "outer": [part.outer.copy() for part in self._parts],
            "velocity": [None if p.velocity is None else p.velocity.copy() for p in self._parts],
            "sent": [part.sent for part in self._parts],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state when the next training begins. All ranks load the same one.

        Raises ValueError for another kind of state. The next training raises it for a state of
        another model, and MismatchError on all ranks if the states differ.
        """
        if not state.keys() >= set(_OWN):
            raise ValueError(f"state: expected that of a DiLoCo, with {', '.join(_OWN)}")
        self._loaded = state

    # --- private --------------------------------------------------------------------------------

    def _begin(self, variables: list[Any]) -> None:
        if not self.model.built:
            raise RuntimeError(
                f"the model {self.model.name!r} is not built when training begins; build it first "
                "(model.build(input_shape), or call it on a batch)"
            )
        buffers = []
        if self._average_buffers:
            others = self.model.non_trainable_variables
            buffers = [v for v in others if "float" in keras.backend.standardize_dtype(v.dtype)]
        _check([*variables, *buffers])
        places = balance([_size(each) for each in variables], self.schedule.fragments)
        broadcast_variables([*variables, *buffers], self.group)
        self._variables = variables
        self._parts = [
            _Part(f"fragment{index}", [variables[place] for place in of], self.outer)
            for index, of in enumerate(places)
        ]
        if buffers:
            self._parts.append(_Buffers("buffers", buffers, AVERAGE))

    def _of(self, fragment: int) -> list[_Part]:
        """The parts that are sent with a fragment: the buffers go with the first."""
        own = [self._parts[fragment]]
        return own if fragment else own + self._parts[self.schedule.fragments :]

    def _send(self, part: _Part, due: int) -> None:
        self._synchronize()
        part.sent, part.due = self.steps, due
        delta = part.delta()
        wire_dtype = self._wire_dtype if part.narrows else None
        part.work = self.group.all_reduce(
            delta, "mean", f"{self._key}/{part.name}", delta, wire_dtype
        )

    def _merge_due(self) -> None:
        failure: NumericError | None = None
        for part in self._parts:
            if part.work is not None and part.due == self.steps:
                try:
                    self._merge(part, self.schedule.keep_local)
                except NumericError as error:  # on all ranks; other fragments may be sound
                    failure = failure or error
        if failure is not None:
            raise failure

    def _merge(self, part: _Part, keep_local: float) -> None:
        work, part.work = part.work, None
        assert work is not None
        mean = wait_or_end(self.group, lambda: work, self._timeout)
        if work.nonfinite:
            rank = work.nonfinite_rank
            who = "the ranks' sum" if rank is None else f"rank {rank}"
            raise NumericError(
                f"{who} has NaN or Inf in {work.key!r}: the outer weights are unchanged; train "
                "with a smaller learning rate or clipped gradients",
                rank=rank, key=work.key, round=work.round, reason="nonfinite",
            )  # fmt: skip
        self._synchronize()
        part.apply(mean)
        part.show(keep_local)

    def _synchronize(self) -> None:
        """On JAX, `fit` has the newest weights, and the variables get them on demand."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()

    def _restore(self, state: Mapping[str, Any]) -> None:
        shapes = [part.outer.shape for part in self._parts]
        if [np.shape(each) for each in state["outer"]] != shapes:
            raise ValueError(
                "state: it is of another model or another number of fragments: expected parts of "
                f"{', '.join(str(shape[0]) for shape in shapes)} elements"
            )
        loaded = zip(self._parts, state["outer"], state["velocity"], state["sent"], strict=True)
        for part, outer, velocity, sent in loaded:
            part.outer[...] = outer
            if part.velocity is not None:
                part.velocity[...] = velocity
            part.sent = sent
        self.steps = int(state["step"])
        self._check_equal()

    def _check_equal(self) -> None:
        found = sha256(f"{self.schedule}, {self.outer}, {self.steps}".encode())
        for part in self._parts:
            found.update(part.outer.tobytes())
        mine = np.frombuffer(found.digest(), np.uint8)
        all_ = wait_or_end(
            self.group, lambda: self.group.all_gather(mine, key=f"{self._key}/check")
        )
        others = [rank for rank, each in enumerate(all_) if (each != all_[0]).any()]
        if others:
            raise MismatchError(
                f"{name_ranks(others)}: another outer state than rank 0; all ranks must load the "
                "same state", rank=others[0], reason="mismatch",
            )  # fmt: skip


class _Part:
    """Variables as one run of float32, with their outer values and velocity."""

    narrows = True

    def __init__(self, name: str, variables: Sequence[Any], optimizer: OuterSGD) -> None:
        self.name = name
        self._variables = list(variables)
        self._optimizer = optimizer
        self.outer = self._gather()
        self.velocity = np.zeros_like(self.outer) if optimizer.momentum else None
        self.sent: int | None = None
        self.due = 0
        self.work: Work[Array] | None = None

    def delta(self) -> Array:
        """The pseudo-gradient. The steps began with the outer values in the variables' dtype."""
        local = self._gather()
        begun = _flat(_rounded(v, x) for v, x in zip(self._variables, self._values(), strict=True))
        return np.subtract(begun, local, out=local)

    def apply(self, mean: Array) -> None:
        self._optimizer.step(self.outer, mean, self.velocity)

    def show(self, keep_local: float) -> None:
        """Give the model the outer values, mixed with its own."""
        if keep_local == 1.0:
            return
        local = self._gather() if keep_local else None
        values = self.outer if local is None else blend(local, self.outer, keep_local)
        for variable, value in zip(self._variables, self._values(values), strict=True):
            variable.assign(keras.ops.cast(value, variable.dtype))

    def _gather(self) -> Array:
        return _flat(
            np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(each, "float32")))
            for each in self._variables
        )

    def _values(self, flat: Array | None = None) -> list[Array]:
        ends = np.cumsum([_size(each) for each in self._variables])[:-1]
        parts = np.split(self.outer if flat is None else flat, ends)
        return [
            part.reshape(tuple(v.shape)) for part, v in zip(parts, self._variables, strict=True)
        ]


class _Buffers(_Part):
    """An exchange makes these variables the mean of all ranks."""

    narrows = False

    def delta(self) -> Array:
        return self._gather()

    def apply(self, mean: Array) -> None:
        self.outer[...] = mean


def _flat(arrays: Any) -> Array:
    return np.concatenate([np.asarray(each, np.float32).reshape(-1) for each in arrays])


def _rounded(variable: Any, value: Array) -> Array:
    """The value after a way through the variable's dtype."""
    if keras.backend.standardize_dtype(variable.dtype) == "float32":
        return value
    narrow = keras.ops.cast(value, variable.dtype)
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(narrow, "float32")))


def _size(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64))


def _check(variables: Sequence[Any]) -> None:
    for variable in variables:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if dtype not in DTYPES:
            raise TypeError(
                f"variable {variable.path!r}: expected {', '.join(DTYPES)}, got {dtype}"
            )
