"""`/metrics` for Prometheus: figures of the whole system, read from PostgreSQL at the moment of the scrape.

No process keeps counters, so any web worker gives the same answer and a restart loses nothing. No label names a tenant: that would
make a series per customer, and show who is a customer to whoever may scrape. A tenant's figures come from the API.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from activities import invariants, standing
from activities.standing import Standing
from console.probes import Answer, Probe, ask
from tenants.context import system_scope

PATIENCE_SECONDS = 5.0  # a scrape that takes longer is of no use to anybody


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Always 200: what does not answer is missing, and `orchestrator_database_up` says so."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(ask(PROBES, patience_seconds=PATIENCE_SECONDS)))
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


class _Figures(Collector):
    """One scrape."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.standing: Standing | None = answers["standing"].value
        self.admission, self.invariants = answers["admission-open"], answers["invariants"]

    def collect(self) -> Iterator[Metric]:
        yield _gauge("build_info", "What runs here.", 1, version=_version(), python=platform.python_version())
        yield _gauge(
            "database_up", "Whether PostgreSQL answered this scrape.", int(self.standing is not None)
        )
        if self.standing is not None:
            yield from _of_queues(self.standing)
            yield from _of_the_rest(self.standing)
        if not self.admission.fault:
            yield _gauge(
                "admission_open",
                "Whether work is granted: 0 while Redis is being rebuilt.",
                int(self.admission.value),
            )
        if self.invariants.value is not None:
            yield from _of_invariants(*self.invariants.value)


def _of_queues(figures: Standing) -> Iterator[Metric]:
    waiting = _family("queue_waiting", "Activities that are due and wait for a worker.", "role", "band")
    delayed = _family(
        "queue_delayed",
        "Activities whose time has not come: put off, or between two attempts.",
        "role",
        "band",
    )
    oldest = _family("queue_oldest_wait_seconds", "How long the first of them has waited.", "role")
    running = _family("queue_running", "Runs under way.", "role")
    accepted = _family(
        "queue_accepted", "Of these, runs whose agent accepted the work and will call back.", "role"
    )
    workers = _family("workers", "Worker processes that serve the role.", "role")
    seats = _family(
        "worker_seats", "Runs that these can carry at once, over all roles that they serve.", "role"
    )
    paused = _family("queue_paused", "1 when the role is paused or switched off for everybody.", "role")
    for role in figures.roles:
        for band in role.waiting:
            waiting.add_metric([role.role, band], role.waiting[band])
            delayed.add_metric([role.role, band], role.delayed[band])
        for family, value in (
            (oldest, role.oldest_seconds), (running, role.running), (accepted, role.accepted),
            (workers, role.workers), (seats, role.seats), (paused, int(role.paused)),
        ):  # fmt: skip
            family.add_metric([role.role], value)
    yield from (waiting, delayed, oldest, running, accepted, workers, seats, paused)


def _of_the_rest(figures: Standing) -> Iterator[Metric]:
    yield _gauge("worker_processes", "Worker processes that beat.", figures.workers)
    yield _gauge(
        "workers_silent", "Worker processes that do not beat and are not declared lost yet.", figures.silent
    )
    yield _gauge("workers_lost", "Worker processes declared lost within the last hour.", figures.lost)
    yield _gauge("outputs_spooled", "Outputs that wait for MongoDB.", figures.spooled)
    yield _gauge("outputs_spooled_seconds", "How long the first of them has waited.", figures.spooled_seconds)
    stuck = _family(
        "activities_needing_people", "Activities that have failed, failed for good, or are blocked.", "status"
    )
    for status in ("failed", "needs_review", "blocked"):
        stuck.add_metric([status], getattr(figures, status))
    people = _family("people_waiting", "What waits for people, by what they are asked for.", "kind")
    oldest = _family("people_oldest_wait_seconds", "How long the first of them has waited.", "kind")
    for asked in figures.people:
        people.add_metric([asked.kind], asked.waiting)
        oldest.add_metric([asked.kind], asked.oldest_seconds)
    repeated = CounterMetricFamily(
        "orchestrator_repeated_submissions",
        "Submissions answered with an equal activity that was under way. An empty role stands for people's work.",
        labels=["role"],
    )
    for role, count in figures.repeated.items():
        repeated.add_metric([role], count)
    away = CounterMetricFamily(
        "orchestrator_turned_away",
        "Work refused because too much was waiting (rejected), dropped to make room (shed), or given up after its time (expired).",
        labels=["role", "reason"],
    )
    for labels, count in figures.turned_away.items():
        away.add_metric(list(labels), count)
    yield from (stuck, people, oldest, repeated, away)


def _of_invariants(at: float, violations: dict[str, int]) -> Iterator[Metric]:
    broken = _family("invariant_violations", "Rows that broke the invariant at the last check.", "invariant")
    for invariant, count in sorted(violations.items()):
        broken.add_metric([invariant], count)
    yield broken
    yield _gauge("invariants_checked_timestamp_seconds", "When the last check ran.", at)


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"orchestrator_{name}", text, labels=labels)


def _gauge(name: str, text: str, value: float, **labels: str) -> GaugeMetricFamily:
    family = _family(name, text, *labels)
    family.add_metric(list(labels.values()), value)
    return family


def _version() -> str:
    try:
        return version("orchestrator")
    except PackageNotFoundError:
        return "unknown"


def _standing_of_all() -> Standing:
    with system_scope():
        return standing.standing()


PROBES = (
    Probe("standing", _standing_of_all),
    Probe("admission-open", standing.admission_is_open),
    Probe("invariants", invariants.last_known),
)
