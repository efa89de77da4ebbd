"""When each fragment is sent, and when its mean is merged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The times of the fragments, in inner steps that have been made, from 1.

    Fragment p is sent after each step t for which (t - t_p) mod ``every`` is 0, where the offsets
    t_p are spread evenly, and its mean is merged after step t + ``delay``. So a fragment is in
    flight at most once.

    Args:
        every: inner steps between two exchanges of a fragment.
        fragments: the number of fragments.
        delay: inner steps that a transfer may take before a rank waits for it; 0 for a rank that
            waits at once.
        keep_local: the share of a rank's own values that it keeps in a merge, from 0 to 1.

    Raises:
        TypeError: a number of steps or fragments is no integer.
        ValueError: a number is not as above.
    """

    every: int
    fragments: int = 1
    delay: int = 0
    keep_local: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("fragments", 1), ("delay", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r}: expected an int, got {type(value).__name__}")
            if value < least:
                raise ValueError(f"{name}={value}: expected {least} or more")
        if self.delay >= self.every:
            raise ValueError(
                f"delay={self.delay} with every={self.every}: expected a smaller delay, since a "
                "fragment must be merged before it is sent again"
            )
        if not 0 <= self.keep_local <= 1:
            raise ValueError(f"keep_local={self.keep_local}: expected a number from 0 to 1")

    @property
    def is_quiet_after_merges(self) -> bool:
        """Whether nothing is in flight after a step with a merge."""
        offsets = sorted({self.offset(fragment) for fragment in range(self.fragments)})
        gaps = [b - a for a, b in zip(offsets, [*offsets[1:], self.every], strict=True)]
        return self.delay < min(gaps)

    def offset(self, fragment: int) -> int:
        return fragment * self.every // self.fragments

    def sent_after(self, step: int) -> list[int]:
        """The fragments that are sent after this step."""
        return [p for p in range(self.fragments) if (step - self.offset(p)) % self.every == 0]
