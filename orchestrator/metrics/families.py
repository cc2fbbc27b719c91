"""Makes samples of the metrics that the catalogue declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from activities.counters.reading import Histogram
from orchestrator.metrics.catalogue import CATALOGUE, PREFIX

#: The values of a metric's labels, in the order in which it declares them.
Labels = tuple[str, ...]


def family(name: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    """A gauge or counter with these samples."""
    declared = CATALOGUE[name]
    made = (CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily)(
        PREFIX + name, declared.text, labels=declared.labels
    )
    for labels, value in samples:
        made.add_metric(labels, value)
    return made


def single(name: str, value: float) -> Metric:
    """One that has no labels."""
    return family(name, [((), value)])


def histogram(name: str, bounds: tuple[float, ...], samples: Mapping[Any, Histogram]) -> Metric:
    declared = CATALOGUE[name]
    made = HistogramMetricFamily(PREFIX + name, declared.text, labels=declared.labels)
    for labels, found in sorted(samples.items()):
        buckets = [(floatToGoString(bound), count) for bound, count in found.cumulative(bounds)]
        made.add_metric(labels, buckets, found.total)
    return made
