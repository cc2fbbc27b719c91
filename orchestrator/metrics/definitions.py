"""Makes samples of the metrics that the catalogue declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from activities.maintenance.counters import Histogram

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


# Every metric that `/metrics` may expose: its name, type, labels and meaning. What is not here cannot be exposed.
#
# `docs/monitoring.md` shows the same table; a test compares the two with what a scrape returns.


PREFIX = "orchestrator_"
Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric. `name` is without the prefix and, for a counter, without `_total`."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """As queries name it; a histogram without `_bucket`, `_sum` and `_count`."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


_ROLE = ("role",)

CATALOGUE = {
    declared.name: declared
    for declared in (
        Declared("build_info", "gauge", "What runs here.", ("version", "python")),
        Declared("database_up", "gauge", "Whether PostgreSQL answered this scrape."),
        Declared("admission_open", "gauge", "Whether work is granted: 0 while Redis is being rebuilt."),
        Declared("keeper_timestamp_seconds", "gauge", "When a leader last looked for something to count."),
        Declared("counters_timestamp_seconds", "gauge", "Up to when the counters hold all that happened."),
        # What came, how long it waited, how long it took, what became of it.
        Declared("activities_submitted", "counter", "Activities that were submitted.", _ROLE),
        Declared(
            "activities_ended", "counter", "Arrivals of activities in a status in which they are settled.", ("role", "status")
        ),
        Declared("queue_wait_seconds", "histogram", "From when an activity could be claimed to its claim by a worker.", _ROLE),
        Declared("run_duration_seconds", "histogram", "From the claim of a run to its end.", ("role", "status")),
        Declared("activity_attempts", "histogram", "Which attempt an activity succeeded with, or failed for good.", _ROLE),
        Declared(
            "refusals", "counter",
            "Runs that ended because their agent or its provider asked to come back later (429).", _ROLE,
        ),
        Declared(
            "repeated_submissions", "counter",
            "Submissions answered with an equal activity that was under way.", _ROLE,
        ),
        Declared(
            "turned_away", "counter",
            "Work that was refused (rejected), dropped to make room (shed), or given up after its time (expired).",
            ("role", "reason"),
        ),
        # Queues.
        Declared("queue_waiting", "gauge", "Activities that are due and wait for a worker.", ("role", "band")),
        Declared(
            "queue_delayed", "gauge", "Activities whose time has not come: put off, or between two attempts.", ("role", "band")
        ),
        Declared("queue_oldest_wait_seconds", "gauge", "How long the first of them has waited.", _ROLE),
        Declared("queue_granted", "gauge", "Of these, granted to a worker that has not taken them up yet.", _ROLE),
        Declared("queue_oldest_grant_seconds", "gauge", "How long the first of the granted has not been taken up.", _ROLE),
        Declared("queue_running", "gauge", "Runs under way: taken up by a worker and not ended.", _ROLE),
        Declared("queue_accepted", "gauge", "Of these, runs whose agent accepted the work and will call back.", _ROLE),
        Declared("queue_paused", "gauge", "1 when the role is paused or switched off for everybody.", _ROLE),
        Declared("broker_messages", "gauge", "Messages in a queue of Celery's, where the broker is Redis.", ("queue",)),
        # Workers.
        Declared("workers", "gauge", "Worker processes that serve the role.", _ROLE),
        Declared("worker_seats", "gauge", "Runs that these can carry at once, over all roles that they serve.", _ROLE),
        Declared("worker_processes", "gauge", "Worker processes that beat."),
        Declared("workers_silent", "gauge", "Worker processes that do not beat and are not declared lost yet."),
        Declared("workers_lost", "counter", "Worker processes that were declared lost."),
        Declared("providers", "gauge", "Model providers called within two days, by the state in which they are.", ("adapter", "state")),
        # Upkeep.
        Declared("leader_epoch", "gauge", "How often the lead of upkeep has changed hands."),
        Declared("leader_up", "gauge", "Whether some process leads, and does the upkeep."),
        Declared("system_job_up", "gauge", "0 when this part of upkeep fails again and again, or hangs.", ("job", "owner")),
        Declared("system_job_age_seconds", "gauge", "How long ago a run of it last ended well.", ("job",)),
        Declared("system_job_duration_seconds", "gauge", "How long its last run took.", ("job",)),
        Declared("system_job_lag_seconds", "gauge", "How long after its time its last run began.", ("job",)),
        Declared("system_job_failures", "gauge", "How many of its runs in a row have failed.", ("job",)),
        # What needs somebody.
        Declared("outputs_spooled", "gauge", "Outputs that wait for MongoDB."),
        Declared("outputs_spooled_seconds", "gauge", "How long the first of them has waited."),
        Declared(
            "activities_needing_people", "gauge", "Activities that have failed, failed for good, or are blocked.", ("status",)
        ),
        Declared(
            "dead_letters", "gauge", "What failed for good and nobody has dealt with: activities and items of mailboxes.",
            ("role", "kind", "reason"),
        ),
        Declared("people_waiting", "gauge", "What waits for people, by what they are asked for.", ("kind",)),
        Declared("people_oldest_wait_seconds", "gauge", "How long the first of them has waited.", ("kind",)),
        Declared("invariant_violations", "gauge", "Rows that broke the invariant at the last check.", ("invariant",)),
        Declared("invariants_checked_timestamp_seconds", "gauge", "When the last check ran."),
    )
}  # fmt: skip
