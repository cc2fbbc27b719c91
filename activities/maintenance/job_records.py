"""State of the system jobs: written by the leader, read by health checks, platform checks, metrics and the admin.

All times are by PostgreSQL's clock: the leader reports how many seconds ago something happened. A former leader cannot overwrite the rows
of a later one. The first report of a new leader deletes the rows of jobs that no longer exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from psycopg.types.json import Jsonb

from tenants.context import SYSTEM
from tenants.sql import Statement

_FOLDER = Path(__file__).resolve().parent.parent / "sql" / "leader"
_RECORD, _READ = (Statement.load(_FOLDER, name) for name in ("record_jobs", "read_jobs"))

FAILURES = 3  # in a row, after which a job counts as failing
PATIENCE_SECONDS = 30.0  # a job counts as late if no run has ended for its period plus this
LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job, as the leader reports it. `started`, `finished` and `succeeded` are seconds ago; None: not in this term."""

    name: str
    owner: str
    period: float
    budget: float
    started: float | None = None
    finished: float | None = None
    succeeded: float | None = None
    duration: float = 0.0
    lag: float = 0.0
    failures: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of one job. `state` is ok, waiting (for a server), failing or late (it hangs, or was not started)."""

    name: str
    owner: str
    period: float
    state: str
    error: str
    failures: int
    finished: float | None  # seconds ago
    succeeded: float | None
    duration: float
    lag: float

    @property
    def is_healthy(self) -> bool:
        return self.state in ("ok", "waiting")


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The leader's epoch and the state of its jobs. `expired`: seconds since the lease ran out; None if it has not, or never existed."""

    epoch: int
    expired: float | None
    jobs: tuple[JobState, ...]

    @property
    def unhealthy(self) -> tuple[JobState, ...]:
        return tuple(job for job in self.jobs if not job.is_healthy)


def write_jobs(epoch: int, reports: Sequence[JobReport]) -> int:
    """Write the reports of the leader of this epoch; its first ones are those of all jobs. Returns the number of changed rows."""
    rows = Jsonb([asdict(report) for report in reports])
    return len(_RECORD.run({"epoch": epoch, "jobs": rows}, using=SYSTEM))


def read_jobs() -> Upkeep:
    """Read everything with one statement. If there was never a leader: epoch 0 and no jobs."""
    rows = _READ.run({}, using=SYSTEM)
    if not rows:
        return Upkeep(0, None, ())
    jobs = tuple(
        JobState(
            row.name,
            row.owner,
            row.period,
            state_of(row),
            row.error,
            row.failures,
            row.finished,
            row.succeeded,
            row.duration,
            row.lag,
        )
        for row in rows
        if row.name is not None
    )
    return Upkeep(rows[0].lease_epoch, max(0.0, rows[0].expired) if rows[0].expired > 0 else None, jobs)


def state_of(row: Any) -> str:
    """Return the `state` of a `JobState`. `row` has `finished` and `led` (seconds ago), `period`, `failures` and `error`."""
    ago = row.finished if row.finished is not None else row.led
    if ago > row.period + PATIENCE_SECONDS:
        return "late"
    if row.failures >= FAILURES:
        return "failing"
    return "waiting" if row.error and not row.failures else "ok"
