"""Celery's Redis transport, hardened against invalid messages and failovers, and without remote control.

With Kombu's own transport an unreadable item in a queue ends the worker, and all its runs. Here it is dropped and logged. PostgreSQL is the
source of truth, so work that was really granted is published again. Workers also survive a failover of Redis.
"""

from __future__ import annotations

import logging
from functools import partial
from queue import Empty
from typing import Any

from celery.app import utils
from celery.app.defaults import SETTING_KEYS
from celery.worker import state
from celery.worker.control import Panel

from tenants.lazy_import import import_without

with import_without("opentelemetry.sdk.metrics"):  # because we use no metrics of the Redis client
    from kombu.transport import TRANSPORT_ALIASES, redis
    from redis.exceptions import ConnectionError, ReadOnlyError

logger = logging.getLogger(__name__)


class Channel(redis.Channel):
    """Reads one item at a time, and continues after an invalid one."""

    def _brpop_read(self, **options: Any) -> Any:
        before = self._undecided_tags()
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]  # the stubs leave it out
        except Empty:
            raise
        except Exception as error:
            # Kombu treats a KeyError as a lost connection: it would reconnect, restore the item, and fail on it again.
            lost = self.connection_errors  # type: ignore[attr-defined]  # as above
            if isinstance(error, lost) and not isinstance(error, LookupError):
                raise
            # Log only the type of the error, because the item may contain anything.
            logger.warning(
                "Message refused",
                extra={"action": "message_refused", "reason": f"unreadable: {type(error).__name__}"},
            )
            for tag in self._undecided_tags() - before:
                self.qos.reject(tag, requeue=False)
            return True

    def _connparams(self, asynchronous: bool = False) -> Any:
        """Raise the error of a lost connection if the channel's connection is gone.

        A message that was in progress when Redis died is acknowledged, or returned, on its old channel. There Kombu would raise an
        `AttributeError`, which ends the worker. The message is delivered again anyway.
        """
        if getattr(self.connection, "client", None) is None:
            raise ConnectionError("The channel's connection is gone")
        return super()._connparams(asynchronous)  # type: ignore[misc]  # the stubs leave it out

    def _undecided_tags(self) -> set[str]:
        """Return the tags of messages that were read but neither acknowledged nor dropped."""
        return set(self.qos._delivered or ())


class Transport(redis.Transport):
    """Kombu's transport with the channel above, which also reconnects after `ReadOnlyError`.

    A server that has become a replica refuses writes. Kombu treats that as a programming error, which ends the worker and all its runs.
    Here it counts as a lost connection, so the worker reconnects until it reaches the new primary.
    """

    Channel = Channel
    connection_errors = (*redis.Transport.connection_errors, ReadOnlyError)


def install() -> None:
    """Use this transport for `redis://` and `rediss://` in this process."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = "orchestrator.broker:Transport"


# Remote control: workers answer queries, but execute no commands.
#
# In Celery, everybody who can publish to the broker can stop workers, revoke tasks and change limits, and Flower has buttons for it. Such
# commands would bypass tenants, limits and the audit trail, so they are refused. The API offers the alternatives: cancel, pause, change a
# cap.


#: Commands that only change what a worker reports. Flower needs them.
HARMLESS = frozenset({"enable_events", "disable_events", "heartbeat"})

REFUSAL = (
    "Workers execute no commands from the broker. To stop a worker, send SIGTERM to its process. To cancel or pause work or to change its "
    "limits, use the API, the console or the admin."
)


def disable_commands() -> None:
    """Refuse all commands of Celery's remote control. Queries, such as `celery inspect ping`, still work. Idempotent."""
    for name, command in Panel.meta.items():
        if command.type == "control" and name not in HARMLESS:
            Panel.data[name] = partial(_refuse, name)
    # Workers that greet each other also exchange the tasks that were revoked.
    state.merge_revoked = lambda task_ids: None  # type: ignore[attr-defined]  # newer than the stubs


def _refuse(command: str, worker: Any, **arguments: Any) -> dict[str, str]:
    logger.warning("Remote command refused", extra={"action": "remote_command_refused", "command": command})
    return {"error": REFUSAL}


def hide_settings() -> None:
    """Let `celery report`, and workers that are asked for their settings, show only those of Celery.

    To Celery all settings of Django are its own. It hides those whose names look secret, but not the passwords in addresses.
    """
    utils.Settings.table = _list_settings  # type: ignore[method-assign, assignment]  # the stubs know it as a function


def _list_settings(
    settings: utils.Settings, with_defaults: bool = False, censored: bool = True
) -> dict[str, Any]:
    """Return the settings under Celery's names, by which it recognizes the address of the broker."""
    settings.finalize()
    listed = settings if with_defaults else settings.without_defaults()
    names = {name.lower().removeprefix("celery_") for name in listed}
    own = {name: settings[name] for name in sorted(names & SETTING_KEYS)}
    return utils.filter_hidden_settings(own) if censored else own
