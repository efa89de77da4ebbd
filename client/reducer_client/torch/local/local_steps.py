"""``LocalSteps``: counts the inner steps of a model, exchanges its fragments and merges them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from reducer_client.dtypes import WireDtype, check_wire_dtype
from reducer_client.elastic import ElasticGroup
from reducer_client.errors import NumericError
from reducer_client.group import Group
from reducer_client.outer.fragments import balance
from reducer_client.outer.optimizer import OuterSGD
from reducer_client.outer.schedule import Schedule
from reducer_client.torch.local import agreement
from reducer_client.torch.local.block import Block, BufferBlock
from reducer_client.torch.local.fragment import Fragment
from reducer_client.torch.local.host import find_host
from reducer_client.torch.local.parameters import (
    alike,
    check_unchanged,
    find_buffers,
    find_parameters,
    plain_module,
)
from reducer_client.torch.local.transfer import Link
from reducer_client.work import Timeout

_numbers: weakref.WeakKeyDictionary[Group, itertools.count[int]] = weakref.WeakKeyDictionary()
_OWN = ("step", "fragments", "outer", "velocity", "pending", "sent")  # the keys of a state


class LocalSteps:
    """The outer optimizer of a model whose inner optimizer somebody else runs.

    Call `step` after each inner step. `reducer_client.torch.DiLoCo` does so, and describes the
    arguments and errors.

    Args:
        is_equal: no first values are exchanged: all ranks have the same parameters, or will load
            a state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        group: Group | None,
        *,
        every: int,
        fragments: int = 1,
        delay: int = 0,
        keep_local: float = 0.0,
        outer: OuterSGD | None = None,
        wire_dtype: WireDtype | None = None,
        average_buffers: bool = False,
        timeout: Timeout | None = None,
        prefix: str | None = None,
        is_equal: bool = False,
    ) -> None:
        self.schedule = Schedule(every, fragments, delay, keep_local)
        self.outer = outer or OuterSGD()
        check_wire_dtype(wire_dtype)
        _check_elastic(group, self.schedule)
        self._module = plain_module(model)
        self.parameters = find_parameters(self._module)
        self._host = find_host(model, group)
        self.steps = 0
        self._link = None if group is None else Link(group, wire_dtype, timeout)
        self._prefix = prefix or _next_prefix(group)
        self.fragments = self._cut(average_buffers)
        self._settings = f"{self.schedule}, {self.outer}, {wire_dtype=!s}, {average_buffers=}"
        self._is_checked = is_equal
        if not is_equal:
            self._begin_equal()

    @property
    def group(self) -> Group | None:
        """The group; None on a rank for which the first rank of its host exchanges."""
        return None if self._link is None else self._link.group

    @property
    def in_flight(self) -> list[int]:
        """The fragments that were sent and not merged yet."""
        return [p for p, fragment in enumerate(self.fragments) if fragment.due is not None]

    @torch.no_grad()
    def step(self) -> None:
        """Count an inner step. Merge the fragments that are due, and send those whose turn it is.

        Raises ReducerErrors.
        """
        self.steps += 1
        merged = self._merge_due()
        sent = self.schedule.sent_after(self.steps)
        if sent:
            check_unchanged(self._module, self.parameters)
            if not self._is_checked:
                self.check()
        for index in sent:
            self.fragments[index].send(self._link, self.steps, self.schedule.delay)
        merged = self._merge_due() or merged
        if merged and isinstance(self.group, ElasticGroup):
            self.group.step()

    @torch.no_grad()
    def finish(self) -> None:
        """Exchange and merge all that this rank has learned. All ranks call this after one step.

        Raises ReducerErrors.
        """
        for fragment in self.fragments:
            if fragment.due is not None:
                fragment.merge(self._host, self.schedule.keep_local)
        late = [fragment for fragment in self.fragments if fragment.sent != self.steps]
        for fragment in late:
            fragment.send(self._link, self.steps, 0)
        for fragment in late:
            fragment.merge(self._host, 0.0)
        for fragment in self.fragments:  # those that were sent after this step kept a part
            fragment.show(self._host)

    def check(self) -> None:
        """Compare the outer states of all ranks, which must call this after the same step.

        Raises MismatchError on all ranks if the states differ.
        """
        if self._link is not None and not isinstance(self.group, ElasticGroup):
            agreement.check(self._link.group, self._key("check"), *self._state())
        self._is_checked = True

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """The outer values and the velocity by the names of parameters, and the step.

        Waits for the means that are in flight, which are a part of the state.
        """
        return {
            "step": self.steps,
            "fragments": len(self.fragments),
            "outer": {n: v for f in self.fragments for n, v in f.outer().items()},
            "velocity": {n: v for f in self.fragments for n, v in f.velocity().items()},
            "pending": {
                p: {"due": self.fragments[p].due, "mean": self.fragments[p].mean()}
                for p in self.in_flight
            },
            "sent": [fragment.sent for fragment in self.fragments],
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. All ranks load the same one, and each rank its own model's state.

        The means that are in flight here are lost. Raises ValueError for the state of another
        model; then this object must not be used any more.
        """
        if not state.keys() >= set(_OWN):
            raise ValueError(
                f"state_dict: expected the state of a DiLoCo, with {', '.join(_OWN)}; got "
                f"{', '.join(map(str, state)) or 'nothing'}"
            )
        same = state["fragments"] == len(self.fragments)
        if state["pending"] and not same:
            raise ValueError(
                f"state_dict: it has means in flight of a model in {state['fragments']} fragments, "
                f"and this one has {len(self.fragments)}: expected the same number; or call "
                "finish() before the state is saved"
            )
        for place, fragment in enumerate(self.fragments):
            fragment.drop()
            fragment.load(state, state["sent"][place] if same else None)
        for place, each in state["pending"].items():
            due, has_link = int(each["due"]), self._link is not None
            self.fragments[int(place)].resume(each["mean"], due, has_link)
        self.steps = int(state["step"])
        self._is_checked = isinstance(self.group, ElasticGroup)

    def _merge_due(self) -> bool:
        due = [fragment for fragment in self.fragments if fragment.due == self.steps]
        failure: NumericError | None = None
        for fragment in due:
            try:
                fragment.merge(self._host, self.schedule.keep_local)
            except NumericError as error:  # on all ranks; other fragments may be sound
                failure = failure or error
        if failure is not None:
            raise failure
        return bool(due)

    def _cut(self, average_buffers: bool) -> list[Fragment]:
        sizes = [each.tensor.numel() for each in self.parameters]
        made = []
        for index, places in enumerate(balance(sizes, self.schedule.fragments)):
            parts = alike([self.parameters[place] for place in places])
            blocks = [Block(part, self.outer) for part in parts]
            if average_buffers and index == 0:
                blocks += [BufferBlock(part) for part in alike(find_buffers(self._module))]
            made.append(Fragment(self._key(f"fragment{index}"), blocks))
        return made

    @torch.no_grad()
    def _begin_equal(self) -> None:
        """Take over rank 0's values where ranks differ."""
        if self._link is not None:
            group, key = self._link.group, self._key("first")
            if agreement.differing(group, key, *self._state()):
                agreement.take_over(group, key, self._blocks())
        for fragment in self.fragments:
            fragment.show(self._host)

    def _state(self) -> tuple[str, list[Block], int]:
        return self._settings, self._blocks(), self.steps

    def _blocks(self) -> list[Block]:
        return [block for fragment in self.fragments for block in fragment.blocks]

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _next_prefix(group: Group | None) -> str:
    return "" if group is None else f"diloco{next(_numbers.setdefault(group, itertools.count()))}"


def _check_elastic(group: Group | None, schedule: Schedule) -> None:
    if isinstance(group, ElasticGroup) and not schedule.is_quiet_after_merges:
        raise ValueError(
            f"delay={schedule.delay} with every={schedule.every} and fragments="
            f"{schedule.fragments}: workers come in when nothing is in flight, so a delay must be "
            "shorter than the time between the turns of two fragments"
        )
