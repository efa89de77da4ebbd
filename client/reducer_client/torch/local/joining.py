"""How a worker comes into an elastic job of local steps, and takes over its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from reducer_client import elastic
from reducer_client.elastic import ElasticGroup, founding
from reducer_client.torch.elastic.model_state import HasState, ModelState

T = TypeVar("T", bound=HasState)

_PART = "local steps"  # the name of this optimizer's state among the parts


def join(
    model: torch.nn.Module,
    make: Callable[[ElasticGroup], T],
    extra: Mapping[str, HasState],
    options: Mapping[str, Any],
) -> T:
    """Join or found a job, and make the optimizer with the parameters of the job.

    Args:
        make: makes the optimizer for a group whose ranks have equal parameters and buffers.
        extra: further objects whose states a worker that joins takes over.
        options: options of `reducer_client.elastic.connect`.

    Raises TypeError, ValueError and ReducerErrors.
    """
    parts: dict[str, HasState] = {f"extra {name}": part for name, part in extra.items()}
    state = ModelState(model, lambda: parts)
    group = elastic.connect(state=state, **options)
    try:
        if group.is_new:
            founding.share(group, state)
        made = make(group)
        taken = state.left.pop(_PART, None)
        if taken is not None:
            made.load_state_dict(taken)
        parts[_PART] = made
        return made
    except BaseException:
        group.abort()
        raise
