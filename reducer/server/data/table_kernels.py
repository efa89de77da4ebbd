"""Carries out the kernel work of tables: outputs in, their effects out."""

from __future__ import annotations

import array
import struct
from collections.abc import Callable
from time import perf_counter
from typing import Final

from reducer.core.surface import events
from reducer.core.surface.buffer import Buffer
from reducer.kernels import KernelSet
from reducer.optimizers import SCALARS, Rule
from reducer.wire.codes import DType, Flag, ReduceOp

ITEM: Final = 4  # bytes of a float32
_FLOAT32: Final = int(DType.FLOAT32)
_MEAN: Final = int(ReduceOp.MEAN)
_BAD: Final = int(Flag.NAN | Flag.NONFINITE)


class TableKernels:
    """`seconds`: the time that the work has taken. `take`, `give_back` and `prepare_change` are the
    pool's.
    """

    def __init__(
        self,
        kernels: KernelSet,
        take: Callable[[int], Buffer],
        give_back: Callable[[Buffer], None],
        prepare_change: Callable[[Buffer], None],
    ) -> None:
        self._kernels = kernels
        self._take = take
        self._give_back = give_back
        self._prepare_change = prepare_change
        self.seconds = 0.0

    def run(self, output: events.TableOutput) -> events.TableEffect:
        """Carry out one output. If this raises, nothing has changed."""
        started = perf_counter()
        effect: events.TableEffect
        if isinstance(output, events.Inspect):
            effect = self._inspect(output)
        elif isinstance(output, events.Apply):
            effect = self._apply(output)
        elif isinstance(output, events.Copy):
            effect = self._copy(output)
        elif isinstance(output, events.Average):
            effect = self._average(output)
        else:
            effect = self._fill(output)
        self.seconds += perf_counter() - started
        return effect

    def _inspect(self, output: events.Inspect) -> events.Inspected:
        is_within = self._kernels.within(output.elements, output.buffer.view, output.limit)
        return events.Inspected(output.work, is_within)

    def _apply(self, output: events.Apply) -> events.Applied:
        # Without memory the step is taken all the same. A worker that is still being sent the array
        # finds the frame damaged by its checksum, and asks again. Each array is prepared alone: no
        # checksum of the others may outlive the step.
        for changed in (output.parameters, *output.slots):
            try:  # noqa: SIM105  # suppress() is interpreted
                self._prepare_change(changed)
            except MemoryError:
                pass
        seen = self._kernels.apply(
            output.rule,
            output.elements,
            output.parameters.view,
            output.gradient.view,
            [slot.view for slot in output.slots],
            output.scalars or _scalars_behind(output),
        )
        return events.Applied(output.work, not seen)

    def _copy(self, output: events.Copy) -> events.Copied:
        length = output.length
        buffer = self._take(length)
        buffer.view[:length] = output.source.view[:length]
        return events.Copied(output.work, buffer, self._kernels.crc32c(buffer.view[:length]))

    def _average(self, output: events.Average) -> events.Averaged:
        buffer = self._take(output.elements * ITEM)
        try:
            seen = self._kernels.finish(
                _MEAN,
                _FLOAT32,
                output.elements,
                output.weight,
                None,
                [part.view for part in output.parts],
                buffer.view,
            )
        except Exception:
            self._give_back(buffer)
            raise
        crc = self._kernels.crc32c(buffer.view[: output.elements * ITEM])
        return events.Averaged(output.work, buffer, crc, not seen & _BAD)

    def _fill(self, output: events.Fill) -> events.Filled:
        taken: list[Buffer] = []
        try:
            for initial in output.initials:
                buffer = self._take(output.elements * ITEM)
                taken.append(buffer)
                _fill(buffer, output.elements, initial)
        except Exception:
            for buffer in taken:
                self._give_back(buffer)
            raise
        return events.Filled(output.work, taken)


def _scalars_behind(output: events.Apply) -> tuple[float, ...]:
    """The scalars that came with the gradient, in an entry of a primary's log."""
    count = len(SCALARS[Rule(output.rule)]._fields)
    start = output.elements * ITEM
    found: tuple[float, ...] = struct.unpack_from(f"<{count}f", output.gradient.view, start)
    return found


def _fill(buffer: Buffer, elements: int, value: float) -> None:
    values = array.array("f", [value]) * elements
    buffer.view[: elements * ITEM] = memoryview(values).cast("B")
