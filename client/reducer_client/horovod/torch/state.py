"""State that an elastic training commits, restores, and sends to all ranks.

After a failure some ranks may come back without state, rank 0 among them. All ranks then take over
the state of the rank with the most commits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from reducer_client.horovod.arrays import broadcast
from reducer_client.horovod.basics import rank
from reducer_client.horovod.context import find_rendezvous
from reducer_client.horovod.objects import allgather_object, broadcast_object
from reducer_client.horovod.torch.functions import broadcast_optimizer_state, broadcast_parameters
from reducer_client.horovod.torch.optimizer import forget_gradients
from reducer_client.horovod.torch.sampler import ElasticSampler


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name
    """Raise this on all ranks to make them rejoin the job and call the function again.

    ``State.check_host_updates`` raises it where the workers come and go.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the workers must rejoin the job")
        self.skip_sync = skip_sync


class State:
    """Base class of states. Derive from this class for state that is stored in another way.

    Args:
        bcast_object: ``f(obj, root_rank)`` that returns the root's object on all ranks.
        get_rank: not used; accepted because states written for Horovod pass it.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._reset_callbacks: list[Callable[[], object]] = []
        self._commits = 0

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Add functions to call when the workers have rejoined, before ``sync``."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the workers have rejoined."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the state in memory. After a failure the training continues from the saved state."""
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if processes wait to be taken in.

        Every rank calls this. In a job with a fixed set of workers the call does nothing.
        """
        rendezvous = find_rendezvous()
        if rendezvous is None:
            return
        news = np.array([rank() == 0 and rendezvous.has_news()])
        has_news = broadcast(news, 0, "elastic.updates")[0]
        if rank() == 0:
            rendezvous.write_again()
        if has_news:
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Save the present state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the last saved state."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make the state equal on all ranks. Every rank calls this."""
        raise NotImplementedError

    def reset(self) -> None:
        """Override this to rebuild, after a rejoin, what depends on the set of workers."""


class ObjectState(State):
    """State of plain objects. Each keyword argument becomes an attribute."""

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self.restore()

    def save(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)

    def sync(self) -> None:
        commits = allgather_object(self._commits, "elastic.commits")
        most = max(commits)
        self.save()
        self.receive(commits.index(most))
        self.save()
        self._commits = most  # only now: a state that failed to arrive must not be passed on

    def receive(self, root: int) -> None:
        """Replace the state by the state of ``root``. Every rank calls this."""
        self._saved_state = self._bcast_object(self._saved_state, root)
        ObjectState.restore(self)


class TorchState(ObjectState):
    """State of a training: models, optimizers, samplers, and any objects that can be pickled.

    Each keyword argument becomes an attribute. A commit copies the ``state_dict`` of objects that
    have ``state_dict`` and ``load_state_dict`` (models, optimizers, schedulers, samplers, ...). Of
    other objects a commit keeps the reference, so assign new objects (``state.batch = 7``).
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        self._copies = {
            name: _StateCopy(v) for name, v in values.items() if isinstance(v, _Stateful)
        }
        for name in self._copies:
            super().__setattr__(name, values.pop(name))
        super().__init__(broadcast_object, rank, **values)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_copies", ()):
            self._copies[name] = _StateCopy(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        for kept in self._copies.values():
            kept.save()
        super().save()

    def restore(self) -> None:
        for kept in self._copies.values():
            kept.restore()
        super().restore()

    def receive(self, root: int) -> None:
        for kept in self._copies.values():
            kept.receive(root)
        super().receive(root)

    def reset(self) -> None:
        for kept in self._copies.values():
            kept.reset()


@runtime_checkable
class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class _StateCopy:
    """A copy of the state of one object."""

    def __init__(self, value: _Stateful) -> None:
        self._value = value
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self._value.state_dict())

    def restore(self) -> None:
        self._value.load_state_dict(copy.deepcopy(self._saved))
        self._forget_gradients()

    def receive(self, root: int) -> None:
        if isinstance(self._value, torch.nn.Module):
            broadcast_parameters(self._value.state_dict(), root)
        elif isinstance(self._value, torch.optim.Optimizer):
            broadcast_optimizer_state(self._value, root)
        else:
            self._value.load_state_dict(broadcast_object(self._value.state_dict(), root))

    def reset(self) -> None:
        if isinstance(self._value, ElasticSampler):
            self._value.reset()
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        """Drop the gradients of an unfinished step, to which the next step would add its own."""
        if isinstance(self._value, torch.optim.Optimizer):
            forget_gradients(self._value)
