"""Since when an item of the inbox waits, and by when it is due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.durations import in_words
from tenants import clock


@dataclass(frozen=True, slots=True)
class Timing:
    """Since when an item waits, and by when it is due."""

    since: datetime
    waited: str
    due_at: datetime | None
    due: str
    overdue: bool

    @classmethod
    def of(cls, item: Any) -> Timing:
        now, due_at = clock.now(), item.due_at
        return cls(
            since=item.created_at,
            waited=in_words((now - item.created_at).total_seconds()),
            due_at=due_at,
            due=in_words(abs((due_at - now).total_seconds())) if due_at else "",
            overdue=due_at is not None and due_at < now,
        )
