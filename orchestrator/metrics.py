"""`/metrics` for Prometheus: figures of the whole system, read from PostgreSQL and Redis at each scrape.

No process stores counters, so every web worker gives the same answer and a restart loses nothing. No label names a tenant, because that
would create a series per customer, and show the customers to everybody who may scrape. Tenants get their figures from the API.

A scrape runs all probes concurrently, each in a thread: a hanging one does not delay the others, and what was not answered is left out.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from activities import dead_letters, queue_stats
from activities.leases import program_version
from activities.maintenance import counters, invariants, job_records
from activities.maintenance.counters import ATTEMPTS, DURATIONS, Histogram, Reading
from activities.maintenance.job_records import Upkeep
from activities.queue_stats import GrantedWork, QueueStats
from agents.governor import overview
from agents.models import Agent
from agents.routing import SYSTEM_QUEUES, queue_of
from console.health import Answer, Probe, ask
from tenants import redis
from tenants.context import system_scope

PATIENCE_SECONDS = 5.0  # a scrape that takes longer would time out


@csrf_exempt  # so that another method gets 405 and `Allow`, not 403
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics, always with status 200: what did not answer is missing, and `orchestrator_database_up` says so."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(ask((probe for probe, _ in SOURCES), patience_seconds=PATIENCE_SECONDS)))
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


class Figures(Collector):
    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = answers

    def collect(self) -> Iterator[Metric]:
        stats: QueueStats | None = self.answers["queue-stats"].value
        yield family("build_info", [((program_version(), platform.python_version()), 1)])
        yield single("database_up", int(stats is not None))
        for probe, describe in SOURCES:
            if (value := self.answers[probe.name].value) is not None:
                yield from describe(value)


def _of_queue_stats(figures: QueueStats) -> Iterator[Metric]:
    yield from _of_queues(figures)
    yield from _of_workers(figures)
    yield from _of_mailboxes(figures)
    yield from _of_people(figures)
    yield from _of_submissions(figures)


def _of_queues(figures: QueueStats) -> Iterator[Metric]:
    roles = figures.roles
    bands = [(role, band) for role in roles for band in role.waiting]
    yield family("queue_waiting", (((role.role, band), role.waiting[band]) for role, band in bands))
    yield family("queue_delayed", (((role.role, band), role.delayed[band]) for role, band in bands))
    yield family("queue_oldest_wait_seconds", (((role.role,), role.oldest_seconds) for role in roles))
    yield family("queue_running", (((role.role,), role.running) for role in roles))
    yield family("queue_accepted", (((role.role,), role.accepted) for role in roles))
    yield family("queue_paused", (((role.role,), int(role.paused)) for role in roles))


def _of_workers(figures: QueueStats) -> Iterator[Metric]:
    yield family("workers", (((role.role,), role.workers) for role in figures.roles))
    yield family("worker_seats", (((role.role,), role.seats) for role in figures.roles))
    yield single("worker_processes", figures.workers)
    yield single("workers_silent", figures.silent)


def _of_mailboxes(figures: QueueStats) -> Iterator[Metric]:
    states = ("waiting", "delayed", "claimed")
    yield family("mailbox_items", (((state,), getattr(figures, f"items_{state}")) for state in states))
    yield single("mailbox_oldest_wait_seconds", figures.items_oldest_seconds)


def _of_people(figures: QueueStats) -> Iterator[Metric]:
    yield single("outputs_spooled", figures.spooled)
    yield single("outputs_spooled_seconds", figures.spooled_seconds)
    statuses = ("failed", "needs_review", "blocked")
    yield family("activities_needing_people", (((status,), getattr(figures, status)) for status in statuses))
    yield family("people_waiting", (((row.kind,), row.waiting) for row in figures.people))
    yield family("people_oldest_wait_seconds", (((row.kind,), row.oldest_seconds) for row in figures.people))


def _of_submissions(figures: QueueStats) -> Iterator[Metric]:
    yield family("repeated_submissions", (((role,), count) for role, count in figures.repeated.items()))
    yield family("turned_away", figures.turned_away.items())


def _of_counters(reading: Reading) -> Iterator[Metric]:
    submitted, lost = reading.totals.get("submitted", {}), reading.totals.get("workers_lost", {})
    waits, attempts = reading.histograms["wait"], reading.histograms["attempts"]
    yield single("keeper_timestamp_seconds", reading.at)
    yield single("counters_timestamp_seconds", reading.complete_at)
    yield family("activities_submitted", (((role,), count) for (role, _), count in submitted.items()))
    yield family("activities_ended", reading.totals.get("ended", {}).items())
    yield histogram("queue_wait_seconds", DURATIONS, {(role,): values for (role, _), values in waits.items()})
    yield histogram("run_duration_seconds", DURATIONS, reading.histograms["run"])
    yield histogram(
        "activity_attempts", ATTEMPTS, {(role,): values for (role, _), values in attempts.items()}
    )
    refused = reading.totals.get("refused", {})
    yield family("refusals", (((role,), count) for (role, _), count in refused.items()))
    yield single("workers_lost", sum(lost.values()))


def _of_granted(granted: Mapping[str, GrantedWork]) -> Iterator[Metric]:
    yield family("queue_granted", (((role,), work.count) for role, work in granted.items()))
    yield family(
        "queue_oldest_grant_seconds", (((role,), work.oldest_seconds) for role, work in granted.items())
    )


def _of_invariants(last_check: tuple[float, Mapping[str, int]]) -> Iterator[Metric]:
    at, violations = last_check
    yield family(
        "invariant_violations", (((invariant,), count) for invariant, count in sorted(violations.items()))
    )
    yield single("invariants_checked_timestamp_seconds", at)


def _of_upkeep(upkeep: Upkeep) -> Iterator[Metric]:
    jobs = upkeep.jobs
    if upkeep.epoch:
        yield single("leader_epoch", upkeep.epoch)
        yield single("leader_up", int(upkeep.expired is None))
    yield family("system_job_up", (((job.name, job.owner), int(job.is_healthy)) for job in jobs))
    yield family(
        "system_job_age_seconds", (((job.name,), job.succeeded) for job in jobs if job.succeeded is not None)
    )
    yield family("system_job_duration_seconds", (((job.name,), job.duration) for job in jobs))
    yield family("system_job_lag_seconds", (((job.name,), job.lag) for job in jobs))
    yield family("system_job_failures", (((job.name,), job.failures) for job in jobs))


# Samples of the metrics in the catalogue.


#: The values of a metric's labels, in the order in which it declares them.
Labels = tuple[str, ...]


def family(name: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    """Return a gauge or counter with these samples."""
    declared = CATALOGUE[name]
    metric = (CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily)(
        PREFIX + name, declared.text, labels=declared.labels
    )
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric


def single(name: str, value: float) -> Metric:
    return family(name, [((), value)])


def histogram(name: str, bounds: tuple[float, ...], samples: Mapping[Any, Histogram]) -> Metric:
    declared = CATALOGUE[name]
    metric = HistogramMetricFamily(PREFIX + name, declared.text, labels=declared.labels)
    for labels, values in sorted(samples.items()):
        buckets = [(floatToGoString(bound), count) for bound, count in values.cumulative(bounds)]
        metric.add_metric(labels, buckets, values.total)
    return metric


# The catalogue of all metrics: name, type, labels and meaning. Only these can be exposed.
#
# `docs/monitoring.md` has the same table; a test compares both with a scrape.


PREFIX = "orchestrator_"
Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. `name` is without the prefix and, for a counter, without `_total`."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def query_name(self) -> str:
        """The name in queries; of a histogram without `_bucket`, `_sum` and `_count`."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


_ROLE = ("role",)

CATALOGUE = {
    declared.name: declared
    for declared in (
        MetricSpec("build_info", "gauge", "Version of the running program.", ("version", "python")),
        MetricSpec("database_up", "gauge", "Whether PostgreSQL answered this scrape."),
        MetricSpec("admission_open", "gauge", "Whether work is granted: 0 while Redis is being rebuilt."),
        MetricSpec("keeper_timestamp_seconds", "gauge", "When a leader last ran the counting."),
        MetricSpec("counters_timestamp_seconds", "gauge", "The time until which the counters are complete."),
        # What came, how long it waited, how long it took, what became of it.
        MetricSpec("activities_submitted", "counter", "Activities that were submitted.", _ROLE),
        MetricSpec(
            "activities_ended", "counter", "Activities that reached a settled status.", ("role", "status")
        ),
        MetricSpec("queue_wait_seconds", "histogram", "Time from when an activity could be claimed to its claim by a worker.", _ROLE),
        MetricSpec("run_duration_seconds", "histogram", "Time from the claim of a run to its end.", ("role", "status")),
        MetricSpec("activity_attempts", "histogram", "Number of the attempt with which an activity succeeded or finally failed.", _ROLE),
        MetricSpec(
            "refusals", "counter",
            "Runs that ended because their agent or its provider asked to come back later (429).", _ROLE,
        ),
        MetricSpec(
            "repeated_submissions", "counter",
            "Submissions answered with an existing activity with the same dedup key.", _ROLE,
        ),
        MetricSpec(
            "turned_away", "counter",
            "Work that was refused (rejected), dropped to make room (shed), or given up after its time (expired).",
            ("role", "reason"),
        ),
        # Queues.
        MetricSpec("queue_waiting", "gauge", "Activities that are due and wait for a worker.", ("role", "band")),
        MetricSpec(
            "queue_delayed", "gauge", "Activities that are not due yet: delayed, or between two attempts.", ("role", "band")
        ),
        MetricSpec("queue_oldest_wait_seconds", "gauge", "How long the oldest of them has waited.", _ROLE),
        MetricSpec("queue_granted", "gauge", "Of these, granted to a worker that has not claimed them yet.", _ROLE),
        MetricSpec("queue_oldest_grant_seconds", "gauge", "How long the oldest grant has not been claimed.", _ROLE),
        MetricSpec("queue_running", "gauge", "Active runs: claimed by a worker and not ended.", _ROLE),
        MetricSpec("queue_accepted", "gauge", "Of these, runs whose agent accepted the work and will call back.", _ROLE),
        MetricSpec("queue_paused", "gauge", "1 when the role is paused or switched off for everybody.", _ROLE),
        MetricSpec("broker_messages", "gauge", "Messages in a Celery queue, if the broker is Redis.", ("queue",)),
        MetricSpec(
            "mailbox_items", "gauge",
            "Open items of mailboxes with external consumers: waiting, delayed (not due yet) or claimed.", ("state",),
        ),
        MetricSpec("mailbox_oldest_wait_seconds", "gauge", "How long the oldest waiting one of them has waited."),
        # Workers.
        MetricSpec("workers", "gauge", "Worker processes that serve the role.", _ROLE),
        MetricSpec("worker_seats", "gauge", "Concurrent runs that these can take, over all roles that they serve.", _ROLE),
        MetricSpec("worker_processes", "gauge", "Worker processes that send heartbeats."),
        MetricSpec("workers_silent", "gauge", "Worker processes that send no heartbeats and are not declared lost yet."),
        MetricSpec("workers_lost", "counter", "Worker processes that were declared lost."),
        MetricSpec("providers", "gauge", "Model providers called within two days, by state.", ("adapter", "state")),
        # Upkeep.
        MetricSpec("leader_epoch", "gauge", "How often the lead has changed."),
        MetricSpec("leader_up", "gauge", "Whether a process leads and does the upkeep."),
        MetricSpec("system_job_up", "gauge", "0 when this system job fails repeatedly or hangs.", ("job", "owner")),
        MetricSpec("system_job_age_seconds", "gauge", "Time since its last success.", ("job",)),
        MetricSpec("system_job_duration_seconds", "gauge", "Duration of its last run.", ("job",)),
        MetricSpec("system_job_lag_seconds", "gauge", "Delay of the start of its last run.", ("job",)),
        MetricSpec("system_job_failures", "gauge", "Number of its consecutive failures.", ("job",)),
        # What needs somebody.
        MetricSpec("outputs_spooled", "gauge", "Outputs that wait for MongoDB."),
        MetricSpec("outputs_spooled_seconds", "gauge", "How long the oldest of them has waited."),
        MetricSpec(
            "activities_needing_people", "gauge", "Activities that have failed, finally failed, or are blocked.", ("status",)
        ),
        MetricSpec(
            "dead_letters", "gauge", "Open dead letters: activities and mailbox items that finally failed.",
            ("role", "kind", "reason"),
        ),
        MetricSpec("people_waiting", "gauge", "Items that wait for people, by kind.", ("kind",)),
        MetricSpec("people_oldest_wait_seconds", "gauge", "How long the oldest of them has waited.", ("kind",)),
        MetricSpec("invariant_violations", "gauge", "Violations of the invariant at the last check.", ("invariant",)),
        MetricSpec("invariants_checked_timestamp_seconds", "gauge", "When the last check ran."),
    )
}  # fmt: skip


def _messages() -> dict[Labels, int]:
    """Return the number of messages in each Celery queue, or nothing if the broker is not Redis. Raises `RedisError`."""
    client = redis.broker()
    if client is None:
        return {}
    with system_scope():
        roles = Agent.objects.order_by("role").values_list("role", flat=True)
        names = [*map(queue_of, roles), *SYSTEM_QUEUES]
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.llen(name)
    return {(name,): length for name, length in zip(names, pipeline.execute(), strict=True)}


def _dead_letters() -> dict[tuple[str, str, str], int]:
    with system_scope():
        return dead_letters.open_letters()


def _providers() -> dict[tuple[str, str], int]:
    """Count the model providers by adapter and state. Their addresses are left out, because they may reveal a tenant."""
    return dict(Counter((provider.adapter, provider.state) for provider in overview.of_platform()))


#: Each probe with the function that turns its answer into metrics.
SOURCES: tuple[tuple[Probe, Callable[[Any], Iterable[Metric]]], ...] = (
    (Probe("queue-stats", queue_stats.stats_of_all_tenants), _of_queue_stats),
    (Probe("counters", counters.read_counters), _of_counters),
    (Probe("granted", queue_stats.read_granted), _of_granted),
    (Probe("messages", _messages), lambda lengths: [family("broker_messages", lengths.items())]),
    (Probe("providers", _providers), lambda states: [family("providers", states.items())]),
    (Probe("dead-letters", _dead_letters), lambda letters: [family("dead_letters", letters.items())]),
    (
        Probe("admission-open", queue_stats.admission_is_open),
        lambda is_open: [single("admission_open", int(is_open))],
    ),
    (Probe("invariants", invariants.last_known), _of_invariants),
    (Probe("upkeep", job_records.read_jobs), _of_upkeep),
)
