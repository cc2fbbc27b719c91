"""Announcements: messages to connected followers only, such as that a run's log has new lines. They are not stored.

They are sent through Redis from process to process, and have neither a row nor a number. Clients that connect later do not receive them;
they read the stored object instead. While Redis is unavailable, there are no announcements.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from socket import socket
from typing import Any
from uuid import UUID

import orjson
import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from tenants import keys
from tenants import redis as connections
from tenants.events.log import EventFilter
from tenants.wire_json import dumps

PATIENCE_SECONDS = 0.5  # with Redis
RETRY_SECONDS = 5.0
PROOF_SECONDS = 10  # between two pings of the server
UNPROVEN = 2  # pings without an answer, after which the connection counts as lost

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A message to followers. A later announcement with the same `subject` replaces an earlier one."""

    tenant_id: UUID
    kind: str
    activity: UUID
    data: Mapping[str, Any]

    @property
    def subject(self) -> tuple[str, UUID, Any]:
        return self.kind, self.activity, self.data.get("run")

    def is_for(self, event_filter: EventFilter) -> bool:
        """Whether a subscriber with this filter gets the announcement. A filter for a pipeline run gets none."""
        if event_filter.pipeline_run is not None or event_filter.activity not in (None, self.activity):
            return False
        return not event_filter.kinds or self.kind in event_filter.kinds

    def frame(self) -> bytes:
        """Return it as text/event-stream, without an id, so that clients resume from the last numbered event."""
        body = {"kind": self.kind, "activity": self.activity, "pipeline_run": None, "data": self.data}
        return b"event: %b\ndata: %b\n\n" % (self.kind.encode(), dumps(body))


def announce(tenant_id: UUID, kind: str, activity: UUID, data: Mapping[str, Any]) -> None:
    """Send this to the readers that follow the tenant now."""
    message_body = orjson.dumps({"kind": kind, "activity": activity, "data": dict(data)})
    try:
        connections.client(timeout_seconds=PATIENCE_SECONDS).publish(
            keys.announcements(tenant_id), message_body
        )
    except redis.RedisError:
        return  # followers see the change with the next announcement, or in the stored object


class AnnouncementReceiver:
    """Receives the announcements of the tenants that are followed here, over its own connection. Used by one thread."""

    def __init__(self) -> None:
        self._client: redis.Redis | None = None
        self._subscription: Any = None
        self._channels: dict[str, UUID] = {}
        self._tried = -1e9

    def listen(self, tenants: Collection[UUID]) -> socket | None:
        """Listen to exactly these tenants. Return the socket that becomes readable when there is a message, or None without a
        connection.
        """
        channels = {keys.announcements(tenant_id): tenant_id for tenant_id in tenants}
        try:
            if self._subscription is None:
                if not channels or time.monotonic() - self._tried < RETRY_SECONDS:
                    return None
                self._open()
            if new := channels.keys() - self._channels.keys():
                self._subscription.subscribe(*new)
            if unfollowed := self._channels.keys() - channels.keys():
                self._subscription.unsubscribe(*unfollowed)
            self._channels = channels
            return self._subscription.connection._sock
        except (redis.RedisError, OSError, AttributeError) as error:
            self._lose(error)
            return None

    @property
    def is_connected(self) -> bool:
        return self._subscription is not None

    def receive(self) -> Iterator[Announcement]:
        """Yield the announcements since the last call. Does not wait."""
        while self._subscription is not None and self._channels:
            try:
                message = self._subscription.get_message(ignore_subscribe_messages=True, timeout=0)
                if self._subscription.health_check_response_counter > UNPROVEN:
                    raise redis.ConnectionError("the server is silent")
            except (redis.RedisError, OSError) as error:
                self._lose(error)
                return
            if message is None:
                if self._subscription.connection is None or not self._subscription.connection.can_read(
                    timeout=0
                ):
                    return
                continue  # it was the answer to a subscription
            tenant_id = self._channels.get(message["channel"].decode())
            if tenant_id is not None:
                body = orjson.loads(message["data"])
                yield Announcement(tenant_id, body["kind"], UUID(body["activity"]), body["data"])

    def close(self) -> None:
        subscription, client = self._subscription, self._client
        self._subscription, self._client, self._channels = None, None, {}
        if subscription is not None:
            subscription.close()
        if client is not None:
            client.close()

    def _open(self) -> None:
        self._tried = time.monotonic()
        self._client = redis.Redis.from_url(
            settings.REDIS_URL, protocol=2, driver_info=None, socket_timeout=PATIENCE_SECONDS, socket_connect_timeout=PATIENCE_SECONDS,
            health_check_interval=PROOF_SECONDS, retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
        self._subscription = self._client.pubsub()

    def _lose(self, error: Exception) -> None:
        try:
            self.close()
        except (redis.RedisError, OSError):
            self._subscription = self._client = None
        facts = {"action": "announcements_lost", "reason": type(error).__name__}
        logger.warning("No announcements to followers while Redis is unavailable", extra=facts)
