"""The figures of one scrape, from the answers to its questions. What was not answered is left out."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from activities.job_records import Upkeep
from activities.leases import program_version
from activities.maintenance.counters import ATTEMPTS, DURATIONS, Reading
from activities.queue_stats import Granted, QueueStats
from console.probes import Answer

from .definitions import family, histogram, single


class Figures(Collector):
    """One scrape."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = answers

    def collect(self) -> Iterator[Metric]:
        standing: QueueStats | None = self.answers["standing"].value
        yield family("build_info", [((program_version(), platform.python_version()), 1)])
        yield single("database_up", int(standing is not None))
        if standing is not None:
            yield from _of_queues(standing)
            yield from _of_workers(standing)
            yield from _of_people(standing)
            yield from _of_the_door(standing)
        for name, describe in _OF_ANSWERS.items():
            if not self.answers[name].fault and self.answers[name].value is not None:
                yield from describe(self.answers[name].value)


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


def _of_people(figures: QueueStats) -> Iterator[Metric]:
    yield single("outputs_spooled", figures.spooled)
    yield single("outputs_spooled_seconds", figures.spooled_seconds)
    statuses = ("failed", "needs_review", "blocked")
    yield family("activities_needing_people", (((status,), getattr(figures, status)) for status in statuses))
    yield family("people_waiting", (((asked.kind,), asked.waiting) for asked in figures.people))
    yield family(
        "people_oldest_wait_seconds", (((asked.kind,), asked.oldest_seconds) for asked in figures.people)
    )


def _of_the_door(figures: QueueStats) -> Iterator[Metric]:
    yield family("repeated_submissions", (((role,), count) for role, count in figures.repeated.items()))
    yield family("turned_away", figures.turned_away.items())


def _of_counters(reading: Reading) -> Iterator[Metric]:
    submitted, lost = reading.totals.get("submitted", {}), reading.totals.get("workers_lost", {})
    waits, attempts = reading.histograms["wait"], reading.histograms["attempts"]
    yield single("keeper_timestamp_seconds", reading.at)
    yield single("counters_timestamp_seconds", reading.complete_at)
    yield family("activities_submitted", (((role,), count) for (role, _), count in submitted.items()))
    yield family("activities_ended", reading.totals.get("ended", {}).items())
    yield histogram("queue_wait_seconds", DURATIONS, {(role,): found for (role, _), found in waits.items()})
    yield histogram("run_duration_seconds", DURATIONS, reading.histograms["run"])
    yield histogram("activity_attempts", ATTEMPTS, {(role,): found for (role, _), found in attempts.items()})
    refused = reading.totals.get("refused", {})
    yield family("refusals", (((role,), count) for (role, _), count in refused.items()))
    yield single("workers_lost", sum(lost.values()))


def _of_granted(granted: Mapping[str, Granted]) -> Iterator[Metric]:
    yield family("queue_granted", (((role,), found.count) for role, found in granted.items()))
    yield family(
        "queue_oldest_grant_seconds", (((role,), found.oldest_seconds) for role, found in granted.items())
    )


def _of_messages(lengths: Mapping[str, int]) -> Iterator[Metric]:
    yield family("broker_messages", (((queue,), length) for queue, length in lengths.items()))


def _of_providers(states: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    yield family("providers", states.items())


def _of_dead_letters(letters: Mapping[tuple[str, str, str], int]) -> Iterator[Metric]:
    yield family("dead_letters", letters.items())


def _of_admission(is_open: bool) -> Iterator[Metric]:
    yield single("admission_open", int(is_open))


def _of_invariants(known: tuple[float, Mapping[str, int]]) -> Iterator[Metric]:
    at, violations = known
    yield family(
        "invariant_violations", (((invariant,), count) for invariant, count in sorted(violations.items()))
    )
    yield single("invariants_checked_timestamp_seconds", at)


def _of_upkeep(upkeep: Upkeep) -> Iterator[Metric]:
    jobs = upkeep.jobs
    if upkeep.epoch:
        yield single("leader_epoch", upkeep.epoch)
        yield single("leader_up", int(upkeep.expired is None))
    yield family("system_job_up", (((job.name, job.owner), int(job.well)) for job in jobs))
    yield family(
        "system_job_age_seconds", (((job.name,), job.succeeded) for job in jobs if job.succeeded is not None)
    )
    yield family("system_job_duration_seconds", (((job.name,), job.duration) for job in jobs))
    yield family("system_job_lag_seconds", (((job.name,), job.lag) for job in jobs))
    yield family("system_job_failures", (((job.name,), job.failures) for job in jobs))


#: By question: what its answer becomes.
_OF_ANSWERS: dict[str, Callable[[Any], Iterator[Metric]]] = {
    "counters": _of_counters,
    "granted": _of_granted,
    "messages": _of_messages,
    "providers": _of_providers,
    "dead-letters": _of_dead_letters,
    "admission-open": _of_admission,
    "invariants": _of_invariants,
    "upkeep": _of_upkeep,
}
