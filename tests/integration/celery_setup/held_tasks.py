"""Tasks of the tests for a worker of the product: one that waits for a signal, and one that fails."""

from __future__ import annotations

import time

import redis
from celery import shared_task
from django.conf import settings

QUEUE = "system"
STARTED, GO, ENDED = "held:started", "held:go", "held:ended"


@shared_task(name="tests.held", ignore_result=True)
def held() -> None:
    """Count each start and each end at the broker."""
    with redis.Redis.from_url(settings.CELERY_BROKER_URL) as client:
        client.incr(STARTED)
        while not client.exists(GO):
            time.sleep(0.05)
        client.incr(ENDED)


@shared_task(name="tests.fails", ignore_result=False)
def fails() -> None:
    raise ValueError("a row of somebody's")
