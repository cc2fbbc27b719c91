"""Publishes grants as Celery messages on the queues of their roles, and hints on the queues of background tasks.

With Redis as the broker, all messages are sent in one pipeline, in Celery's message protocol 2. Building them here costs a fifth of a call
of Celery's producer, which is used for any other broker.
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
    """Send one message per grant. Raises the broker's error. Sending again later is safe, because claims are guarded."""
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
    """Send a message that only says that rows wait. Losing it is harmless. Raises the broker's error.

    Returns False, and sends nothing, if the queue is not empty: the hint in it says the same, so hints do not pile up without a worker.
    """
    client = _redis_broker(os.getpid())
    expires = clock.now() + expires_after
    registered = current_app.tasks.get(task)
    ignore_result = registered is None or registered.ignore_result
    if client is None:
        current_app.send_task(
            task,
            kwargs=dict(arguments),
            queue=queue,
            expires=expires,
            ignore_result=ignore_result,
            headers=tracing.outgoing(),
        )
        return True
    if client.llen(queue):
        return False
    message = _envelope(task, arguments, queue, expires=expires.isoformat(), ignore_result=ignore_result)
    client.lpush(queue, message)
    return True


def _arguments(grant: Grant) -> dict[str, str]:
    return {
        "tenant": str(grant.tenant_id),
        "activity": str(grant.activity_id),
        "grant": grant.grant,
        "role": grant.role,
    }


def _envelope(
    task: str,
    arguments: Mapping[str, str],
    queue: str,
    *,
    expires: str | None = None,
    ignore_result: bool = True,
) -> bytes:
    """Return a task message of Celery (protocol 2) in the form in which Kombu's Redis transport stores it."""
    task_id = str(uuid4())
    body = base64.b64encode(orjson.dumps([[], arguments, _EMBED])).decode()
    headers: dict[str, Any] = {
        "lang": "py", "task": task, "id": task_id, "root_id": task_id, "parent_id": None, "group": None,
        "argsrepr": "()", "kwargsrepr": repr(arguments), "origin": _origin(), "ignore_result": ignore_result,
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
    """Return the client of the broker, or None if it is not Redis. One per process, because a pool must not cross a fork."""
    url = settings.CELERY_BROKER_URL
    if not url.startswith(("redis://", "rediss://", "unix://")):
        return None
    timeout = settings.ORCHESTRATOR_REDIS_TIMEOUT_SECONDS
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        health_check_interval=10,
        retry_on_error=[redis.ReadOnlyError],  # after a failover, a new connection may reach the primary
    )
