"""The recorder: counts the calls, for tests that check the orchestrator's promises from outside.

A call counts as running until just before its result is sent. The orchestrator may start the next job as soon
as it has the result, and the two must not count as concurrent.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .job import Job

REMEMBERED_CALLS = 200


@dataclass(slots=True)
class RoleRecord:
    """Counts of one role."""

    calls: int = 0
    finished: int = 0
    failed: int = 0
    running: int = 0
    max_running: int = 0
    running_by_tenant: Counter[str] = field(default_factory=Counter)
    max_running_by_tenant: Counter[str] = field(default_factory=Counter)
    executions: Counter[str] = field(default_factory=Counter)

    def restarted(self) -> RoleRecord:
        """Return a new record that counts only the calls that still run."""
        return RoleRecord(
            running=self.running,
            max_running=self.running,
            running_by_tenant=+self.running_by_tenant,  # "+" omits those at zero
            max_running_by_tenant=+self.running_by_tenant,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the record. `duplicates`: executions that arrived more than once."""
        return {
            "calls": self.calls,
            "finished": self.finished,
            "failed": self.failed,
            "running": self.running,
            "max_running": self.max_running,
            "max_running_by_tenant": dict(self.max_running_by_tenant),
            "duplicates": {name: count for name, count in self.executions.items() if count > 1},
        }


class Recorder:
    """Thread-safe counts of all calls since the start or the last reset."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._max_running = 0
        self._roles: defaultdict[str, RoleRecord] = defaultdict(RoleRecord)
        self._recent: deque[dict[str, str]] = deque(maxlen=REMEMBERED_CALLS)

    def reset(self) -> None:
        """Reset all counts. Calls that still run continue to count as running."""
        with self._lock:
            self._max_running = self._running
            for role, record in self._roles.items():
                self._roles[role] = record.restarted()
            self._recent.clear()

    def begin(self, job: Job) -> None:
        """Record the arrival of a call. Each `begin` needs one `end`."""
        with self._lock:
            record = self._roles[job.role]
            record.calls += 1
            record.running += 1
            record.running_by_tenant[job.tenant_id] += 1
            self._running += 1
            if job.execution_id:
                record.executions[job.execution_id] += 1
            self._raise_high_water_marks(record, job.tenant_id)
            self._recent.append(_call(job))

    def end(self, job: Job, *, failed: bool) -> None:
        """Record the end of a call, before its result is sent."""
        with self._lock:
            record = self._roles[job.role]
            record.failed += failed
            record.finished += not failed
            record.running -= 1
            record.running_by_tenant[job.tenant_id] -= 1
            self._running -= 1

    def as_json(self) -> dict[str, Any]:
        """Return all records."""
        with self._lock:
            roles = {role: record.as_json() for role, record in sorted(self._roles.items())}
            return {
                "running": self._running,
                "max_running": self._max_running,
                "roles": roles,
                "recent": list(self._recent),
            }

    def _raise_high_water_marks(self, record: RoleRecord, tenant_id: str) -> None:
        self._max_running = max(self._max_running, self._running)
        record.max_running = max(record.max_running, record.running)
        highest = record.max_running_by_tenant
        highest[tenant_id] = max(highest[tenant_id], record.running_by_tenant[tenant_id])


def _call(job: Job) -> dict[str, str]:
    return {
        "at": datetime.now(UTC).isoformat(),
        "role": job.role,
        "tenant_id": job.tenant_id,
        "job_id": job.job_id,
        "execution_id": job.execution_id,
        "wake_reason": job.wake_reason,
    }
