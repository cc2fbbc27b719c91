"""How a grant becomes a Celery message on the queue of its role, and a waiting background task a hint on the queue of its own.

With Redis as broker the messages of a batch go out in one pipeline, in Celery's message protocol 2; building them here costs a
fifth of what a producer call does. Any other broker gets them through Celery's own producer.
"""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import uuid4

import orjson
import redis
from celery import current_app
from django.conf import settings

from activities.admission import Grant
from agents.routing import RUN_TASK, queue_of
from tenants import clock, tracing

_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def publish(grants: Sequence[Grant]) -> None:
    """Send one message per grant. Raises the broker's error; sending again later is safe, since claims are guarded."""
    client = _redis_broker(os.getpid())
    if client is None:
        for grant in grants:
            current_app.send_task(
                RUN_TASK, kwargs=_arguments(grant), ignore_result=True, headers=tracing.outgoing()
            )
        return
    pipeline = client.pipeline(transaction=False)
    for grant in grants:
        queue = queue_of(grant.role)
        pipeline.lpush(queue, _envelope(RUN_TASK, _arguments(grant), queue))
    pipeline.execute()


def hint(task: str, arguments: Mapping[str, str], *, queue: str, expires_after: timedelta) -> bool:
    """Send a message that only says that there is something to do. Raises the broker's error; losing it loses nothing.

    A hint that nobody has taken from the queue says so already, so without a worker there never is more than one: then False.
    """
    client = _redis_broker(os.getpid())
    expires = clock.now() + expires_after
    known = current_app.tasks.get(task)
    unkept = known is None or known.ignore_result
    if client is None:
        current_app.send_task(
            task,
            kwargs=dict(arguments),
            queue=queue,
            expires=expires,
            ignore_result=unkept,
            headers=tracing.outgoing(),
        )
        return True
    if client.llen(queue):
        return False
    client.lpush(queue, _envelope(task, arguments, queue, expires=expires.isoformat(), unkept=unkept))
    return True


def _arguments(grant: Grant) -> dict[str, str]:
    return {
        "tenant": str(grant.tenant_id),
        "activity": str(grant.activity_id),
        "grant": grant.grant,
        "role": grant.role,
    }


def _envelope(
    task: str, arguments: Mapping[str, str], queue: str, *, expires: str | None = None, unkept: bool = True
) -> bytes:
    """Celery's task message (protocol 2) as Kombu's Redis transport stores it. `unkept`: nobody wants to see what comes of it."""
    task_id = str(uuid4())
    body = base64.b64encode(orjson.dumps([[], arguments, _EMBED])).decode()
    headers: dict[str, Any] = {
        "lang": "py", "task": task, "id": task_id, "root_id": task_id, "parent_id": None, "group": None,
        "argsrepr": "()", "kwargsrepr": repr(arguments), "origin": _origin(), "ignore_result": unkept,
        "retries": 0, "eta": None, "expires": expires, "timelimit": [None, None], "shadow": None, "stamps": {}, **tracing.outgoing(),
    }  # fmt: skip
    properties = {
        "correlation_id": task_id, "reply_to": "", "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
        "delivery_info": {"exchange": "", "routing_key": queue}, "delivery_tag": str(uuid4()),
    }  # fmt: skip
    return orjson.dumps(
        {
            "body": body,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    )


@cache
def _origin() -> str:
    return f"relay@{socket.gethostname()}"


@cache
def _redis_broker(pid: int) -> redis.Redis | None:
    """The broker's own client when the broker is Redis. One per process: a pool must not cross a fork."""
    url = settings.CELERY_BROKER_URL
    if not url.startswith(("redis://", "rediss://", "unix://")):
        return None
    timeout = settings.ORCHESTRATOR_REDIS_TIMEOUT_SECONDS
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        health_check_interval=10,
        retry_on_error=[redis.ReadOnlyError],  # after a failover: another connection may lead to the primary
    )
