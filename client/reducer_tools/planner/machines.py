"""The table of machine types, with the rate of each NIC. Prices come from the user."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from reducer_tools.planner.fields import Section, SpecError, describe, shorten

# The machine type that Vertex AI's "Distributed training" recommends for a Reduction Server.
DEFAULT_REDUCER = "n1-highcpu-16"
_COLUMNS = ("gbps", "price")


@dataclass(frozen=True)
class Machine:
    """A machine type: Gbit/s of its NIC, each way, and its price per hour (None if unknown)."""

    name: str
    gbps: float
    price: float | None = None


class Machines:
    """Machine types by name. A row of a later table replaces a row of an earlier one."""

    def __init__(self, *tables: object) -> None:
        """Each table is the content of a TOML file. Raises SpecError with the field's path."""
        self._rows: dict[str, Machine] = {}
        for table in tables:
            section = Section("", table)
            for name in section.names:
                self._rows[name] = _read_row(name, Section(name, section.get(name)))

    def find(
        self,
        path: str,
        names: Sequence[str],
        gbps: float | None = None,
        price: float | None = None,
    ) -> Machine:
        """The row of the first of ``names`` in the table; ``gbps`` and ``price`` override the row.

        Raises SpecError with ``path``, where the name was read, if there is neither row nor rate.
        """
        row = next((self._rows[name] for name in names if name in self._rows), None)
        if gbps is None and row is None:
            near = difflib.get_close_matches(names[-1], self._rows, 3) or [*self._rows][:3]
            raise SpecError(
                path,
                f"a machine of the table ({', '.join(near)}, ...)",
                shorten(repr(names[0])),
                "add a row with --machines, or give the rate in Gbit/s",
            )
        found = row or Machine(names[0], 0.0)
        return Machine(
            found.name,
            found.gbps if gbps is None else gbps,
            found.price if price is None else price,
        )


def _read_row(name: str, row: Section) -> Machine:
    row.refuse_others(_COLUMNS)
    gbps, price = row.number("gbps"), row.number("price")
    if gbps is None or not 0 < gbps <= 1e6:
        raise SpecError(row.at("gbps"), "Gbit/s above 0, at most 1e6", describe(row.get("gbps")))
    if price is not None and not 0 <= price <= 1e9:
        raise SpecError(row.at("price"), "a price for an hour, from 0 to 1e9", describe(price))
    return Machine(name, gbps, price)
