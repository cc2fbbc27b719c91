"""Counts everything up to now and reads the metrics of a scrape."""

from __future__ import annotations

from django.test import Client
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from activities.maintenance import counters
from activities.models import ActivityEvent, CountingMark
from tenants.context import system_scope
from tests.engine import eventually

#: Counting waits for every older transaction of the server, where the suite's other databases live as well.
PATIENCE = 120.0


def count_all() -> None:
    """Let the leader's job count all events so far."""

    def is_counted() -> bool:
        counters.count_fresh()
        with system_scope():
            newest = ActivityEvent.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
            mark = CountingMark.objects.get()
        return mark.counted >= newest

    eventually(is_counted, PATIENCE)


def scrape(client: Client | None = None) -> list[Metric]:
    """Return the metric families of one scrape."""
    answer = (client or Client()).get("/metrics")
    assert answer.status_code == 200
    return list(text_string_to_metric_families(answer.content.decode()))


def samples(families: list[Metric]) -> dict[tuple[str, ...], float]:
    """Return all samples by their name without the prefix and their label values in the order of the labels' names."""
    return {
        (
            sample.name.removeprefix("orchestrator_"),
            *(sample.labels[name] for name in sorted(sample.labels)),
        ): sample.value
        for family in families
        for sample in family.samples
    }
