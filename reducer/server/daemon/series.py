"""What a Prometheus series is, and how the rows of one become a family of a scrape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Row = tuple[tuple[str, ...], float]
Kind = Literal["counter", "gauge", "histogram"]
# How to combine the numbers of several lanes or reducers: all lanes see a round, one lane sees a
# byte.
Over = Literal["sum", "max", "-"]


@dataclass(frozen=True)
class Series:
    """One family; ``field`` is the name of its number in a part of the snapshot."""

    field: str
    name: str
    help: str
    kind: Kind = "gauge"
    over: Over = "sum"
    labels: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """The name of a series in a scrape, without the suffixes of a histogram."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def labelled(labels: tuple[str, ...], *rows: tuple[Any, ...]) -> tuple[Series, ...]:
    return tuple(replace(Series(*row), labels=labels) for row in rows)


def family(series: Series, rows: Iterable[Row]) -> Metric:
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    found = kind(series.name, series.help, labels=series.labels)
    for values, number in rows:
        found.add_metric(values, number)
    assert isinstance(found, Metric)
    return found
