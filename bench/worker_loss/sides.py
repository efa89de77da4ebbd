"""The two ways to train with workers that come and go, as a worker of the bench uses them."""

import datetime
import logging
import socket
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed import GradBucket, TCPStore  # type: ignore[attr-defined]
from torch.futures import Future

from reducer_client.torch import Elastic


class Side(Protocol):
    """One training step is `begin`, forward and backward of `model`, and `end`."""

    model: nn.Module

    def begin(self) -> None: ...

    def end(self) -> bool:
        """Whether the optimizer made its step."""

    def step(self) -> int:
        """The steps of the job."""

    def workers(self) -> int:
        """How many workers contributed to this step."""


class WithElastic:
    def __init__(self, case: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model = model
        self._elastic = Elastic(
            model, optimizer, case["addresses"], workers=case["workers"], job="worker-loss",
            worker_silence=case["silence"],
        )  # fmt: skip

    def begin(self) -> None:
        self._elastic.samples = 1  # all workers have as many

    def end(self) -> bool:
        self._elastic.step()
        return True

    def step(self) -> int:
        return self._elastic.steps

    def workers(self) -> int:
        return len(self._elastic.group.members)


class WithTorchft:
    """As in torchft's README: one replica group a worker, gloo, an asynchronous quorum.

    The communication hook is the bench's own: the hook of torchft 0.2.0 fails an assertion after
    an all-reduce that failed, and so ends the worker.
    """

    def __init__(self, case: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer):
        import torchft

        logging.getLogger("torchft").setLevel(logging.CRITICAL)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._store = store
        timeouts = {}
        if case["timeout"]:
            timeouts["timeout"] = datetime.timedelta(seconds=case["timeout"])
        self._manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(**timeouts),
            load_state_dict=self._load, state_dict=self._state, min_replica_size=1,
            rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port,
            lighthouse_addr=case["lighthouse"], replica_id=f"worker_{case['slot']}",
            hostname=socket.gethostname(), **timeouts,
        )  # fmt: skip
        ddp = type("Ddp", (torchft.DistributedDataParallel,), {"_comm_hook": staticmethod(_reduce)})
        self.model = ddp(self._manager, model)
        self._optimizer = torchft.Optimizer(self._manager, optimizer)

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def begin(self) -> None:
        self._optimizer.zero_grad()

    def end(self) -> bool:
        before = self._manager.current_step()
        self._optimizer.step()
        return bool(self._manager.current_step() > before)

    def step(self) -> int:
        return int(self._manager.current_step())

    def workers(self) -> int:
        return int(self._manager.num_participants())


def _reduce(manager: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """The sum of a bucket, or anything: the manager drops the step of a failed all-reduce."""
    manager.allreduce(bucket.buffer()).wait()
    done: Future[torch.Tensor] = Future()
    done.set_result(bucket.buffer())
    return done


SIDES: dict[str, type[WithElastic | WithTorchft]] = {
    "elastic": WithElastic,
    "torchft": WithTorchft,
}
