"""Cuts a model's parameters into fragments of about equal size."""

from __future__ import annotations

from collections.abc import Sequence


def balance(sizes: Sequence[int], fragments: int) -> list[list[int]]:
    """The places of the parameters of each fragment, in ascending order.

    The largest parameter that is left goes to the smallest fragment (LPT), and parameters of equal
    size go in the order of the model. Equal layers are thus strided over the fragments, and the
    largest fragment has at most 4/3 of the elements that it has in the best division. The result
    depends on nothing but the arguments, so all ranks have the same one.

    Args:
        sizes: the number of elements of each parameter.
        fragments: from 1 to the number of parameters that have elements.

    Raises ValueError for another number of fragments.
    """
    filled = [place for place, size in enumerate(sizes) if size]
    if not 1 <= fragments <= max(1, len(filled)):
        raise ValueError(
            f"fragments={fragments}: expected 1 to {len(filled)}, the number of parameters to be "
            "divided among the fragments"
        )
    found: list[list[int]] = [[] for _ in range(fragments)]
    totals = [0] * fragments
    for place in sorted(filled, key=lambda place: -sizes[place]):  # stable
        to = totals.index(min(totals))
        found[to].append(place)
        totals[to] += sizes[place]
    return [sorted(places) for places in found]
