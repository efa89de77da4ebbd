"""Callbacks of Horovod's Keras API."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from reducer_client.horovod import arrays, basics
from reducer_client.horovod.handles import wait_all
from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.keras.all_reduce import average_logs, trained_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

logger = logging.getLogger("reducer_client")


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Before training, give all ranks the weights and optimizer state of ``root_rank``."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.local = {id(variable) for variable in local_variables or ()}

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras, after it has built the model."""
        shared = [v for v in trained_variables(self.model) if id(v) not in self.local]
        handles = [
            arrays.broadcast_async(keras.ops.convert_to_numpy(variable), self.root_rank)
            for variable in shared
        ]
        for variable, value in zip(shared, wait_all(handles), strict=True):
            variable.assign(value)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """At the end of each epoch, replace the metrics by their mean over the ranks of the set.

    Put this callback before the callbacks that read metrics.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        average_logs(logs, lambda v: arrays.allreduce(v, process_set=self.process_set))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """``initial_lr * multiplier(epoch)`` from ``start_epoch`` until before ``end_epoch``.

    Args:
        multiplier: a number, or a function of the epoch. Without ``staircase`` the function is
            called before each batch, with a fraction (2.25 after a quarter of epoch 2).
        momentum_correction: has no effect, because Keras 3 compiles the momentum into the step. A
            warning says so if the optimizer has momentum.
        steps_per_epoch: batches per epoch, needed without ``staircase``; by default the number that
            ``fit`` knows.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        # A constant multiplier changes nothing within an epoch.
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        given: Any = multiplier
        self.multiplier: Callable[[float], float] = (
            given if callable(given) else lambda epoch: float(given)
        )
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        momentum: float = getattr(self.model.optimizer, "momentum", 0.0)
        if self.momentum_correction and momentum:
            logger.warning("no momentum correction: Keras 3 compiles the momentum into the step")
        if not self.staircase and not self._steps():
            raise ValueError(
                f"{type(self).__name__}: expected steps_per_epoch, got none, and fit does not know "
                "the steps of an epoch: pass steps_per_epoch to the callback"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._epoch = epoch
        if self.staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if not self.staircase:
            self._adjust(self._epoch + batch / self._steps())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; ``logs["lr"]`` is the learning rate."""
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _adjust(self, epoch: float) -> None:
        if self.start_epoch <= epoch and (self.end_epoch is None or epoch < self.end_epoch):
            self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)

    def _steps(self) -> int:
        return int(self.steps_per_epoch or (self.params or {}).get("steps") or 0)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """From ``initial_lr / size()`` at the first batch to ``initial_lr`` after ``warmup_epochs``.

    ``initial_lr`` is the learning rate for all ranks together: the learning rate of a
    single process, multiplied by ``size()``.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch of the warm-up takes the whole rate.
            done = epoch + 1.0 / self._steps()
            return (1.0 + done * (basics.size() - 1) / warmup_epochs) / basics.size()

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=int(np.ceil(warmup_epochs)),
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch + 1 == self.end_epoch and basics.rank() == 0:
            print(f"Epoch {epoch + 1}: the warm-up of the learning rate is over")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]  # untyped
    """Rank 0 saves the model whenever the metric is the best so far; the others save nothing."""

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        options = {"monitor": monitor, "verbose": verbose, "mode": mode, "save_freq": save_freq}
        super().__init__(filepath, save_best_only=True, **options)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if basics.rank() == 0:
            super()._save_model(*args, **kwargs)
