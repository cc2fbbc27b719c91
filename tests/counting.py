"""Reads the metrics for tests, counted up to now, as a scrape returns them."""

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
    """Let the leader's turns count everything that has happened."""

    def done() -> bool:
        counters.count_fresh()
        with system_scope():
            newest = ActivityEvent.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
            mark = CountingMark.objects.get()
        return mark.counted >= newest

    eventually(done, PATIENCE)


def scraped(client: Client | None = None) -> list[Metric]:
    """The families of one scrape."""
    answer = (client or Client()).get("/metrics")
    assert answer.status_code == 200
    return list(text_string_to_metric_families(answer.content.decode()))


def samples(families: list[Metric]) -> dict[tuple[str, ...], float]:
    """Every sample: (name without the prefix, label values in the order of their names) -> value."""
    return {
        (
            sample.name.removeprefix("orchestrator_"),
            *(sample.labels[name] for name in sorted(sample.labels)),
        ): sample.value
        for found in families
        for sample in found.samples
    }
