"""Lightning: a callback for local steps whose outer steps are common to all workers.

Each worker runs a Trainer of its own, with one device or with DDPStrategy within its host:

    trainer = lightning.Trainer(devices=1, callbacks=[DiLoCo(group, every=50)])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.callbacks import Callback

from reducer_client.group import Group
from reducer_client.torch.local.local_steps import LocalSteps


class DiLoCo(Callback):  # type: ignore[misc]  # Lightning may be missing where types are checked
    """Lightning callback: counts the optimizer's steps, and makes the outer steps between them.

    The optimizer is an ordinary one. With accumulated gradients, a step is a step of the optimizer;
    a step that a GradScaler skips counts. Training begins with the parameters of the first worker,
    and at its end all workers have the same parameters. All workers make the same number of steps.
    A checkpoint has the outer state, so each worker needs a folder of its own for an exact resume.

    Args:
        group: the group of the workers that train apart. With DDPStrategy, the first rank of each
            host gives a group, and the others None.
        every: the number of steps between two exchanges.
        options: further arguments of `reducer_client.torch.DiLoCo`, such as ``fragments``,
            ``delay``, ``keep_local``, ``outer``, ``average_buffers``.

    Raises ValueError for arguments that are not as above. When training begins, TypeError and
    ValueError for a model that cannot be trained so, and ValueError for several optimizers; in
    training the errors of `reducer_client.torch.DiLoCo.step`.
    """

    def __init__(self, group: Group | None, *, every: int, **options: Any) -> None:
        self.group = group
        self._options = {"every": every, **options}
        self._local: LocalSteps | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._seen = 0  # steps of the trainer that were counted

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning."""
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"{len(trainer.optimizers)} optimizers: expected one, whose steps can be counted; "
                "for several, call reducer_client.torch.DiLoCo in a manual optimization"
            )
        model = trainer.strategy.model
        if self._local is None or self._loaded is not None:
            is_equal = self._loaded is not None  # each worker goes on with its own values
            self._local = LocalSteps(model, self.group, is_equal=is_equal, **self._options)
        if self._loaded is not None:
            self._local.load_state_dict(self._loaded)
            self._loaded = None
        self._seen = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Called by Lightning."""
        for _step in range(self._seen, trainer.global_step):
            self._made().step()
        self._seen = trainer.global_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning: exchanges all that was not exchanged yet."""
        self._made().finish()

    def state_dict(self) -> dict[str, Any]:
        """Called by Lightning for a checkpoint. Waits for exchanges under way."""
        return {} if self._local is None else dict(self._local.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called by Lightning before the training begins."""
        self._loaded = state_dict or None

    def _made(self) -> LocalSteps:
        assert self._local is not None
        return self._local
