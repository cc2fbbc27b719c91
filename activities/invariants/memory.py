"""The outcome of the last check, kept in Redis for the metrics. Losing it loses nothing: the next check writes it anew."""

from __future__ import annotations

import time
from collections.abc import Mapping

import orjson

from activities.invariants import keys
from activities.invariants.report import Report
from tenants.redis import client

KEPT_SECONDS = 86_400  # an older outcome says nothing about now


def remember(report: Report) -> None:
    """Keep what was found. Raises `redis.RedisError`."""
    counts = dict.fromkeys(report.held, 0) | {
        violation.invariant: violation.count for violation in report.violations
    }
    client().set(keys.outcome(), orjson.dumps({"at": time.time(), "violations": counts}), ex=KEPT_SECONDS)


def last_known() -> tuple[float, Mapping[str, int]] | None:
    """When the last check ran (Unix seconds), and its violations by invariant. Raises `redis.RedisError`."""
    kept = client().get(keys.outcome())
    if kept is None:
        return None
    document = orjson.loads(kept)
    return document["at"], document["violations"]
