"""Celery's Redis transport, for queues into which somebody may push what is no message.

Kombu lets an item that cannot be read end the worker, and with it every run of that process. Here such an item is dropped and logged; the
truth is in PostgreSQL, so work that was really granted is published again. And a worker outlives a failover of Redis.
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import Any

from celery.worker.control import Panel
from kombu.transport import TRANSPORT_ALIASES, redis
from redis.exceptions import ConnectionError, ReadOnlyError

logger = logging.getLogger(__name__)


class Channel(redis.Channel):
    """Reads one item at a time, and goes on after one that is no message."""

    def _brpop_read(self, **options: Any) -> Any:
        before = self._undecided_tags()
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]  # the stubs leave it out
        except Empty:
            raise
        except Exception as error:
            # Kombu counts a missing key among the errors of a connection: it would connect again, put the item back, and meet it again.
            lost = self.connection_errors  # type: ignore[attr-defined]  # as above
            if isinstance(error, lost) and not isinstance(error, LookupError):
                raise
            # Its content may be anybody's and anything, so the kind of the fault is all that is told.
            logger.warning(
                "Message refused",
                extra={"action": "message_refused", "reason": f"unreadable: {type(error).__name__}"},
            )
            for tag in self._undecided_tags() - before:
                self.qos.reject(tag, requeue=False)
            return True

    def _connparams(self, asynchronous: bool = False) -> Any:
        """Raises the error of a lost connection when the channel outlives its connection.

        A message that was in hand when Redis died is acknowledged, or given back, on its old channel. Kombu meets what is not there any
        more with an `AttributeError`, which ends the worker. The message comes again by itself.
        """
        if getattr(self.connection, "client", None) is None:
            raise ConnectionError("The channel's connection is gone")
        return super()._connparams(asynchronous)  # type: ignore[misc]  # the stubs leave it out

    def _undecided_tags(self) -> set[str]:
        """The tags of messages that were read and neither done nor dropped yet."""
        return set(self.qos._delivered or ())


class Transport(redis.Transport):
    """As Kombu's own, with the channel above.

    A server that has become a replica refuses to be written to. Kombu takes that for a mistake of the caller, which ends a worker
    with all that it runs; here it is a connection to the wrong server, which is made again until it leads to the right one.
    """

    Channel = Channel
    connection_errors = (*redis.Transport.connection_errors, ReadOnlyError)


def install() -> None:
    """Let this be the transport of `redis://` and `rediss://` in this process."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = "orchestrator.broker:Transport"


# What a worker does when somebody at the broker tells it to: nothing. It answers questions, and that is all.
#
# Celery lets all who can publish to the broker stop workers, revoke tasks and change their limits, and Flower has buttons for it. Here
# such
# orders would be obeyed past tenants, limits and the audit trail, so workers do not know them. The API has what people need instead: to
# cancel, to pause, to change a cap.


#: Orders that change nothing but what a worker tells: Flower cannot watch without them.
HARMLESS = frozenset({"enable_events", "disable_events", "heartbeat"})


def answer_only() -> None:
    """Forget every order of Celery's remote control; questions, such as `celery inspect ping`, are answered as before."""
    for name, about in list(Panel.meta.items()):
        if about.type == "control" and name not in HARMLESS:
            del Panel.meta[name], Panel.data[name]
