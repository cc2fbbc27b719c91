"""The lookout of the leader: every question in its turn. One that cannot be answered keeps the others from nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import redis

from activities.admission import Closed
from activities.conditions.noticing import QUESTIONS
from activities.conditions.telling import follow
from activities.models.alert import AlertKind
from tenants.exceptions import LimiterUnavailable

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
#: A question that reads more the more is wrong.
SELDOM = {AlertKind.QUEUE_OLD: 60.0}


@dataclass(slots=True)
class Lookout:
    """Says when each question is due again, by its own clock."""

    clock: Callable[[], float] = time.monotonic
    asked: dict[AlertKind, float] = field(default_factory=dict)

    def look(self) -> int:
        """Ask what is due, and tell people of what has begun or ended since; how much that was. Cheap to call at every tick."""
        now, told = self.clock(), 0
        for kind, question in QUESTIONS.items():
            if now - self.asked.get(kind, -1e9) < SELDOM.get(kind, LOOK_SECONDS):
                continue
            self.asked[kind] = now
            try:
                noticed = question()
            except (redis.RedisError, Closed, LimiterUnavailable) as error:
                # Nobody knows, so what people were told stays as it is.
                logger.info(
                    "Condition unknown",
                    extra={"action": "condition_unknown", "kind": kind.value, "reason": type(error).__name__},
                )
                continue
            told += follow(kind, noticed)
        return told
